#include "troupe/train/run/sample.h"

#include <algorithm>

#include "troupe/core/check.h"

namespace troupe {
namespace {

GenerateConfig config_of(const SampleOptions& o, const Tokenizer& tokenizer) {
  GenerateConfig out{.sample = o.draw, .max_tokens = o.tokens, .window = o.window};
  if (tokenizer.special().eos >= 0) out.stop = {tokenizer.special().eos};
  return out;
}

bool ends_with(const TokenList& tokens, const TokenList& end) {
  return tokens.size() >= end.size() && std::equal(end.rbegin(), end.rend(), tokens.rbegin());
}

}  // namespace

Generator generator_of(Learner& learner) {
  const auto through = [&learner](int64_t tokens, const UnitFunction& f) {
    learner.through_units({tokens},
                          [&](int64_t unit, int64_t, const at::Tensor& h) { return f(unit, h); });
  };
  // One rank's for all: replicas that drew and ended on their own would part where a logit differs
  // in its last bit, and one would wait in a collective of experts or weights that another leaves out.
  const auto of_first = [&state = learner.parallel()](const TokenList& own) {
    std::vector<double> tokens(own.size());
    if (state.first_of_stage()) tokens.assign(own.begin(), own.end());
    const std::vector<double> all = state.all_reduce(std::move(tokens));
    return TokenList(all.begin(), all.end());
  };
  return Generator(learner.model(), through, of_first);
}

std::vector<std::string> sample(Generator& generator, const Tokenizer& tokenizer,
                                const std::vector<std::string>& prompts,
                                const SampleOptions& options, const OnText& on_text) {
  std::vector<TokenList> ids;
  std::vector<TextStream> streams;
  std::vector<std::string> out(prompts.size());
  const auto tell = [&](size_t text, const std::string& piece) {
    out[text] += piece;
    if (on_text) on_text(static_cast<int64_t>(text), piece);
  };
  for (const std::string& prompt : prompts) {
    std::vector<TokenId> encoded = tokenizer.encode(prompt);
    if (encoded.empty()) encoded.push_back(std::max<TokenId>(tokenizer.special().bos, 0));
    streams.emplace_back(tokenizer, DecodeOptions{.skip_special = !options.special});
    for (const TokenId id : encoded) tell(ids.size(), streams.back().add(id));
    ids.emplace_back(encoded.begin(), encoded.end());
  }
  generator.generate(ids, config_of(options, tokenizer), [&](int64_t text, int64_t token) {
    const auto i = static_cast<size_t>(text);
    tell(i, streams[i].add(static_cast<TokenId>(token)));
    return true;
  });
  for (size_t i = 0; i < streams.size(); ++i) tell(i, streams[i].finish());
  return out;
}

Chat::Chat(Generator& generator, const Tokenizer& tokenizer, const ChatTemplate& marks,
           const SampleOptions& options)
    : generator_(generator), tokenizer_(tokenizer), marks_(marks), options_(options) {
  end_with(marks.close);
}

Chat::Chat(Generator& generator, const Tokenizer& tokenizer, const ModelTemplate& form,
           const SampleOptions& options)
    : generator_(generator),
      tokenizer_(tokenizer),
      options_(options),
      renderers_(std::make_unique<ChatRenderers>(form)) {
  row_.messages.push_back({.role = "user", .content = "Hi"});
  end_with(rendered(Wanted::kClose));
  row_ = {};
}

void Chat::end_with(const std::string& close) {
  // White space behind the mark may be joined with what follows, or never come.
  const size_t last = close.find_last_not_of(" \t\r\n");
  const std::string mark = last == std::string::npos ? close : close.substr(0, last + 1);
  const std::vector<TokenId> ids = tokenizer_.encode(mark, {.add_special = false});
  end_.assign(ids.begin(), ids.end());
  if (end_.empty()) {
    fail(Code::kBadValue, "the closing mark", to_text(close), "has no ids: no answer would end");
  }
}

// The parts of a message are encoded one by one, as they were for training.
void Chat::append(const std::string& text, bool special_as_text) {
  const EncodeOptions how = {.add_special = false, .special_as_text = special_as_text};
  const std::vector<TokenId> ids = tokenizer_.encode(text, how);
  ids_.insert(ids_.end(), ids.begin(), ids.end());
}

std::string Chat::rendered(Wanted wanted) {
  RenderedChat out = renderers_->render({chat_request(row_, wanted)}).front();
  if (!out.fault.empty()) fail(Code::kBadValue, "chat", out.fault);
  return std::move(out.text);
}

void Chat::say(const std::string& role, const std::string& text) {
  if (renderers_) return row_.messages.push_back({.role = role, .content = text});
  append(opened(marks_, role));
  append(text, /*special_as_text=*/true);  // nobody ends a message by what they say
  append(marks_.close);
}

void Chat::begin_answer() {
  if (!renderers_) return append(opened(marks_, marks_.learn));
  ids_.clear();
  append(rendered(Wanted::kPrompt));
}

void Chat::end_answer(const TokenList& made, const std::string& text) {
  if (renderers_) return say("assistant", text);
  ids_.insert(ids_.end(), made.begin(), made.end());
  append(marks_.close);
}

std::string Chat::answer(const std::function<void(const std::string&)>& on_text) {
  begin_answer();
  TextStream stream(tokenizer_, {.skip_special = !options_.special});
  std::string out;
  const auto tell = [&](const std::string& piece) {
    out += piece;
    if (on_text) on_text(piece);
  };
  // Tokens wait while they may be the beginning of the closing mark.
  TokenList made, waiting;
  bool ended = false;
  generator_.generate({ids_}, config_of(options_, tokenizer_), [&](int64_t, int64_t token) {
    made.push_back(token);
    waiting.push_back(token);
    ended = ends_with(waiting, end_);
    if (ended) return false;
    while (waiting.size() >= end_.size()) {
      tell(stream.add(static_cast<TokenId>(waiting.front())));
      waiting.erase(waiting.begin());
    }
    return true;
  });
  if (!ended) {
    for (const int64_t token : waiting) tell(stream.add(static_cast<TokenId>(token)));
  }
  tell(stream.finish());
  if (ended) made.resize(made.size() - end_.size());
  end_answer(made, out);
  return out;
}

}  // namespace troupe
