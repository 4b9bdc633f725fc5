#include "apps/models/gguf_vocab.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "troupe/checkpoint/hf/tokenizer_files.h"
#include "troupe/core/check.h"
#include "troupe/data/tokenizer/chat_template.h"
#include "troupe/data/tokenizer/patterns.h"
#include "troupe/data/tokenizer/sentencepiece_model.h"
#include "troupe/data/tokenizer/tokenizers.h"

namespace troupe {
namespace {

// Not in the order of the file: a vocabulary of 150,000 names is searched for each one then.
using SortedJson = nlohmann::json;

// llama.cpp's kinds of tokens.
constexpr int32_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

struct Vocabulary {
  std::string model = {};  // "gpt2", "llama"
  std::vector<std::string> tokens = {}, merges = {};
  std::vector<int32_t> types = {};
  std::vector<float> scores = {};
};

std::string unused_token(int64_t id) {
  return std::string("[PAD").append(std::to_string(id)).append("]");
}

void fill_up(Vocabulary& v, int64_t size) {
  for (int64_t id = std::ssize(v.tokens); id < size; ++id) v.tokens.push_back(unused_token(id));
  v.types.resize(static_cast<size_t>(size), kUnused);
}

std::string merge_of(const SortedJson& merge) {
  if (merge.is_string()) return merge.get<std::string>();
  return merge.at(0).get<std::string>() + ' ' + merge.at(1).get<std::string>();
}

// The earlier the merge that makes a token, the higher its score; what no merge makes is last.
std::vector<float> scores_of(const Vocabulary& v) {
  std::map<std::string, size_t> ranks;
  for (size_t rank = 0; rank < v.merges.size(); ++rank) {
    std::string token = v.merges[rank];
    token.erase(token.find(' '), 1);
    ranks.emplace(std::move(token), rank);
  }
  std::vector<float> out;
  for (const std::string& token : v.tokens) {
    const auto at = ranks.find(token);
    const size_t rank = at == ranks.end() ? ranks.size() : at->second;
    out.push_back(-static_cast<float>(rank));
  }
  return out;
}

bool is_byte(const std::string& token) {
  return token.size() == 6 && token.starts_with("<0x") && token.back() == '>';
}

Vocabulary of_tokenizer_json(const SortedJson& json, const Tokenizer& tokenizer,
                             int64_t model_vocab) {
  const SortedJson& model = json.at("model");
  const bool fallback = model.value("byte_fallback", false);
  Vocabulary out{.model = fallback ? "llama" : "gpt2"};
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    std::string token = tokenizer.token(static_cast<TokenId>(id));
    const bool none = token.empty();
    out.types.push_back(none ? kUnused : fallback && is_byte(token) ? kByte : kNormal);
    out.tokens.push_back(none ? unused_token(id) : std::move(token));
  }
  for (const AddedToken& added : tokenizer.added_tokens()) {
    const auto i = static_cast<size_t>(added.id);
    out.types.at(i) = added.special ? kControl : kUserDefined;
    out.tokens.at(i) = added.content;  // token() says a normalized one as it is sought
  }
  for (const SortedJson& merge : model.at("merges")) out.merges.push_back(merge_of(merge));
  fill_up(out, model_vocab);
  if (fallback) out.scores = scores_of(out), out.merges.clear();
  return out;
}

Vocabulary of_sentencepiece(const SentencePieceModel& model, const std::string& file,
                            int64_t model_vocab) {
  if (model.model_type != 2) {
    fail(Code::kBadModelConfig, file,
         "is a SentencePiece model that is no BPE, for which llama.cpp",
         "has no form beside a decoder model");
  }
  Vocabulary out{.model = "llama"};
  for (const SentencePieceModel::Piece& piece : model.pieces) {
    out.tokens.push_back(piece.text);
    out.scores.push_back(piece.score);
    out.types.push_back(static_cast<int32_t>(piece.type));  // the same numbers
  }
  fill_up(out, model_vocab);
  out.scores.resize(out.tokens.size(), 0);
  return out;
}

// All regular expressions that cut a text, in their order.
void collect_patterns(const SortedJson& step, std::vector<std::string>& out) {
  if (!step.is_object()) return;
  const std::string type = step.value("type", "");
  if (type == "Sequence") {
    for (const SortedJson& inner : step.at("pretokenizers")) collect_patterns(inner, out);
  } else if (type == "Split" && step.at("pattern").contains("Regex")) {
    out.push_back(step.at("pattern").at("Regex").get<std::string>());
  } else if (type == "ByteLevel") {
    if (step.value("use_regex", true)) out.emplace_back("ByteLevel");
  } else {
    out.push_back(type);
  }
}

// What llama.cpp calls a way to cut a text; none: it has another, or a name that is not known here.
std::optional<std::string> name_of_patterns(const SortedJson& pre_tokenizer) {
  struct Known {
    std::string_view pattern, name;
  };
  constexpr Known kKnown[] = {{"ByteLevel", "gpt-2"},
                              {kGpt2Pattern, "gpt-2"},
                              {kCl100kPattern, "llama-bpe"},
                              {kQwenPattern, "qwen2"},
                              {kO200kPattern, "gpt-4o"}};
  std::vector<std::string> patterns;
  collect_patterns(pre_tokenizer, patterns);
  if (patterns.size() != 1) return {};
  for (const Known& known : kKnown) {
    if (patterns[0] == known.pattern) return std::string(known.name);
  }
  return {};
}

void add_special(const Tokenizer& tokenizer, std::vector<GgufField>& out) {
  const SpecialIds ids = tokenizer.special();
  const auto add = [&](const char* name, TokenId id) {
    if (id < 0) return;
    out.push_back({std::string("tokenizer.ggml.") + name + "_token_id", static_cast<uint32_t>(id)});
  };
  add("bos", ids.bos);
  add("eos", ids.eos);
  add("unknown", ids.unk);
  add("padding", ids.pad);
  const std::vector<TokenId> around = tokenizer.encode("");
  const auto has = [&](TokenId id) { return id >= 0 && std::ranges::count(around, id) > 0; };
  out.push_back({"tokenizer.ggml.add_bos_token", has(ids.bos)});
  out.push_back({"tokenizer.ggml.add_eos_token", has(ids.eos) && ids.eos != ids.bos});
}

void add_chat_template(const std::string& tokenizer, std::vector<GgufField>& out) {
  const std::optional<ModelTemplate> found = find_model_template(tokenizer);
  if (!found) return;
  for (const NamedText& text : found->templates) {
    if (text.name == "default") out.push_back({"tokenizer.chat_template", text.text});
  }
}

const std::string* text_of(const NamedTexts& files, const char* name) {
  for (const auto& [file, text] : files) {
    if (file == name) return &text;
  }
  return nullptr;
}

}  // namespace

GgufVocabulary gguf_vocabulary(const std::string& tokenizer, int64_t model_vocab) {
  const NamedTexts files = tokenizer_files(tokenizer);
  const std::string* json = text_of(files, "tokenizer.json");
  const std::string* pieces = text_of(files, "tokenizer.model");
  if (json == nullptr && pieces == nullptr) {
    return {.fields = {{"tokenizer.ggml.model", std::string("none")}},
            .notes = {"the file has no vocabulary: llama.cpp runs it on ids alone"}};
  }
  const std::unique_ptr<Tokenizer> opened = open_tokenizer(tokenizer);
  require_fits(*opened, model_vocab, tokenizer);
  const bool in_pieces = opened->kind() == "sentencepiece";
  if (in_pieces && json != nullptr) {  // a file of any name counts by its content
    if (pieces == nullptr) pieces = json;
    json = nullptr;
  }
  GgufVocabulary out;
  Vocabulary v;
  std::string pre = "default";
  if (json == nullptr) {
    const std::string file = tokenizer + "/tokenizer.model";
    if (!in_pieces) {
      fail(Code::kBadModelConfig, file, "is a tokenizer of kind", opened->kind(),
           "for which --gguf has no form; a tokenizer.json of it has one");
    }
    v = of_sentencepiece(check_sentencepiece(*pieces, file), file, model_vocab);
  } else {
    const SortedJson read = SortedJson::parse(*json);
    v = of_tokenizer_json(read, *opened, model_vocab);
    const std::optional<std::string> known =
        name_of_patterns(read.value("pre_tokenizer", SortedJson()));
    pre = known.value_or("default");
    if (!known && v.model == "gpt2") {
      out.notes.emplace_back(
          "llama.cpp may cut texts otherwise than the tokenizer: its pattern is "
          "none of gpt-2, llama-bpe, qwen2, gpt-4o, and is called default");
    }
  }
  out.fields = {{"tokenizer.ggml.model", v.model},
                {"tokenizer.ggml.pre", pre},
                {"tokenizer.ggml.tokens", std::move(v.tokens)},
                {"tokenizer.ggml.token_type", std::move(v.types)}};
  if (!v.scores.empty()) out.fields.push_back({"tokenizer.ggml.scores", std::move(v.scores)});
  if (!v.merges.empty()) out.fields.push_back({"tokenizer.ggml.merges", std::move(v.merges)});
  add_special(*opened, out.fields);
  add_chat_template(tokenizer, out.fields);
  return out;
}

}  // namespace troupe
