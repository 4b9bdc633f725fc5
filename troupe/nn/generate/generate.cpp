#include "troupe/nn/generate/generate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <utility>

#include "troupe/core/check.h"

namespace troupe {
namespace {

c10::Device device_of(Model& model) {
  c10::Device device(c10::kCPU);
  model.for_each_param(-1, [&](const std::string& name, Param& p) {
    TROUPE_CHECK(p.allocated(), name, "has no value");
    device = p.stored()[0].device();
  });
  return device;
}

// Whether a token's result depends on it and those before it alone.
bool reads_left_to_right(Model& model) {
  // Asked of the config: each rank of a pipeline has other layers, and all decide alike.
  bool causal = true;
  for (int64_t i = 0; i < model.config().layers; ++i) {
    const LayerConfig layer = layer_config(model.config(), i);
    causal &= !layer.moe || is_causal(layer.moe->router);
  }
  const CapacityConfig& capacity = model.config().moe.capacity;
  return causal && !(capacity.factor > 0 && capacity.in_evaluation);
}

// Whether a layer keeps what stands behind a row's last token alone.
bool keeps_states(const ModelConfig& config) {
  for (int64_t i = 0; i < config.layers; ++i) {
    if (layer_config(config, i).delta) return true;
  }
  return false;
}

int64_t common_prefix(const TokenList& a, const TokenList& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

std::vector<float> row_of(const at::Tensor& logits_BV, int64_t i) {
  if (!logits_BV.defined()) return {};
  const int64_t V = logits_BV.size(1);
  const auto* const data = logits_BV.const_data_ptr<float>() + i * V;
  return {data, data + V};
}

TokenList last_of(const TokenList& tokens, int64_t n) {
  return {tokens.end() - std::min<int64_t>(n, std::ssize(tokens)), tokens.end()};
}

}  // namespace

Generator::Generator(Model& model, ThroughUnits through, TokensOfHead of_head)
    : model_(model),
      through_(std::move(through)),
      of_head_(std::move(of_head)),
      device_(device_of(model)),
      cached_(reads_left_to_right(model)),
      states_(keeps_states(model.config())) {
  if (through_) return;
  through_ = [&model](int64_t, const UnitFunction& f) {
    at::Tensor h;
    for (int64_t unit = 0; unit < model.num_units(); ++unit) h = f(unit, h);
  };
}

at::Tensor Generator::logits(const at::Tensor& ids_BS, KvCache* cache) {
  Batch batch{.ids_BS = ids_BS.to(device_)};
  batch.cache = cache;
  if (cache != nullptr) batch.positions_BS = cache->positions(ids_BS.size(1)).to(device_);
  const int64_t last = model_.num_units() - 1;
  at::Tensor out;
  through_(ids_BS.numel(), [&](int64_t unit, const at::Tensor& h) {
    if (unit < last) return model_.forward(unit, h, batch, {}).h;
    const at::Tensor all = model_.tokens().all_gather_no_grad(h, ids_BS.numel());
    out =
        model_.logits(all.view({ids_BS.size(0), ids_BS.size(1), -1}).select(1, ids_BS.size(1) - 1));
    return at::Tensor();
  });
  read_ += ids_BS.numel();
  return out.defined() ? out.to(at::kFloat).cpu().contiguous() : out;
}

TokenList Generator::draw(const std::vector<Text*>& texts, const std::vector<TokenList>& made,
                          const SampleConfig& how) {
  TokenList out;
  for (Text* const text : texts) {
    const auto number = static_cast<uint32_t>(text->number);
    const auto place = std::ssize(made[text->number]);
    out.push_back(
        text->next.empty() ? 0 : sample(std::move(text->next), text->seen, how, {place, number}));
  }
  return of_head_ ? of_head_(out) : out;
}

// Reads a prompt, less what some row of the cache holds of it.
void Generator::begin(Text& text, int64_t window) {
  const TokenList tokens = last_of(text.seen, window);
  if (!cached_) {
    text.next = row_of(logits(at::tensor(tokens, at::kLong).unsqueeze(0), nullptr), 0);
    return;
  }
  int64_t from = text.number, known = 0;
  for (size_t row = 0; row < held_.size(); ++row) {
    const int64_t n = std::min(common_prefix(held_[row], tokens), std::ssize(tokens) - 1);
    if (n <= known || (states_ && n < std::ssize(held_[row]))) continue;
    known = n;
    from = static_cast<int64_t>(row);
  }
  cache_->copy(from, text.number, known);
  reused_ += known;
  read_all(text, tokens, known);
}

// The row of the cache holds `known` of the tokens.
void Generator::read_all(Text& text, const TokenList& tokens, int64_t known) {
  const TokenList fresh(tokens.begin() + known, tokens.end());
  cache_->use({text.number});
  text.next = row_of(logits(at::tensor(fresh, at::kLong).unsqueeze(0), &*cache_), 0);
  cache_->advance(std::ssize(fresh));
  held_[text.number] = tokens;
}

// Reads the newest token of each text.
void Generator::read_next(std::vector<Text*>& texts, int64_t window) {
  std::vector<Text*> together;
  for (Text* const text : texts) {
    if (!cached_) {
      begin(*text, window);
    } else if (cache_->length(text->number) < window) {
      together.push_back(text);
    } else {
      cache_->copy(text->number, text->number, 0);
      read_all(*text, last_of(text->seen, (window + 1) / 2), 0);
    }
  }
  if (together.empty()) return;
  std::vector<int64_t> rows;
  TokenList ids;
  for (const Text* const text : together) {
    rows.push_back(text->number);
    ids.push_back(text->seen.back());
    held_[text->number].push_back(text->seen.back());
  }
  cache_->use(rows);
  const at::Tensor next = logits(at::tensor(ids, at::kLong).unsqueeze(1), &*cache_);
  cache_->advance(1);
  for (size_t i = 0; i < together.size(); ++i) {
    together[i]->next = row_of(next, static_cast<int64_t>(i));
  }
}

std::vector<TokenList> Generator::generate(const std::vector<TokenList>& prompts,
                                           const GenerateConfig& config, const OnToken& on_token) {
  validate(config.sample);
  TROUPE_CHECK(config.max_tokens >= 0 && config.window >= 0, "max_tokens", config.max_tokens,
               "and window", config.window, "must be 0 or more");
  const int64_t most = model_.config().max_positions;
  const int64_t window = config.window > 0 ? std::min(config.window, most) : most;
  const at::NoGradGuard no_grad;
  std::vector<Text> texts;
  int64_t longest = 0;
  for (const TokenList& prompt : prompts) {
    TROUPE_CHECK(!prompt.empty(), "prompt", texts.size(), "is empty");
    texts.push_back({std::ssize(texts), prompt, {}});
    longest = std::max<int64_t>(longest, std::ssize(prompt) + config.max_tokens);
  }
  const int64_t capacity = std::min(longest, window);
  if (cached_ && cache_) cache_->grow(std::ssize(texts), capacity);
  if (cached_ && !cache_) cache_.emplace(model_.config().layers, std::ssize(texts), capacity);
  held_.resize(std::max(held_.size(), texts.size()));
  std::vector<TokenList> out(texts.size());
  std::vector<Text*> live;
  for (Text& text : texts) {
    if (config.max_tokens == 0) break;
    begin(text, window);
    live.push_back(&text);
  }
  while (!live.empty()) {
    const TokenList drawn = draw(live, out, config.sample);
    size_t at = 0;
    std::erase_if(live, [&](Text* text) {
      TokenList& made = out[text->number];
      const int64_t token = drawn[at++];
      if (std::ranges::find(config.stop, token) != config.stop.end()) return true;
      made.push_back(token);
      ++made_;
      text->seen.push_back(token);
      const bool goes_on = !on_token || on_token(text->number, token);
      return !goes_on || std::ssize(made) == config.max_tokens;
    });
    if (!live.empty()) read_next(live, window);
  }
  return out;
}

}  // namespace troupe
