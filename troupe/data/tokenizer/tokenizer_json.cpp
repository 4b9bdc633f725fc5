#include "troupe/data/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/core/text/text.h"
#include "troupe/core/text/utf8.h"
#include "troupe/data/tokenizer/bpe_tokenizer.h"
#include "troupe/data/tokenizer/byte_level.h"
#include "troupe/data/tokenizer/json_node.h"
#include "troupe/data/tokenizer/special_names.h"

namespace troupe {
namespace {

constexpr int64_t kMostId = int64_t{1} << 24;
constexpr size_t kMostAround = 1024;  // ids that a template puts around a text

// Reads a document into the parts of a tokenizer.
class Reader {
 public:
  Reader(TokenizerJson json, const std::string& file) : json_(std::move(json)), file_(file) {}

  BpeTokenizerParts run() {
    const JsonNode root(json_.document, file_, "");
    root.only({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
               "post_processor", "decoder", "model"});
    if (root.has("version") && root.text("version") != "1.0") {
      root.at("version").refuse("is", to_text(root.text("version")) + ", and 1.0 is supported");
    }
    for (const char* name : {"truncation", "padding"}) {
      if (!root.has(name)) continue;
      warn(std::string(name) + " is not obeyed: a text's ids are all of them, and no more");
    }
    parts_.kind = "tokenizer.json";
    if (root.has("normalizer")) parts_.normalizer = Normalizer(root.at("normalizer"));
    if (root.has("pre_tokenizer")) parts_.pre_tokenizer = PreTokenizer(root.at("pre_tokenizer"));
    if (root.has("decoder")) parts_.decoder = Decoder(root.at("decoder"));
    read_vocab();
    read_model(root.at("model"));
    if (root.has("added_tokens")) read_added(root);
    if (root.has("post_processor")) read_post(root.at("post_processor"));
    return std::move(parts_);
  }

 private:
  template <class... Args>
  [[noreturn]] void refuse(const Args&... what) const {
    fail(Code::kBadTokenizer, file_, what...);
  }
  void warn(std::string what) { parts_.warnings.push_back(file_ + ": " + std::move(what)); }
  std::string& slot(int64_t id) {
    if (static_cast<size_t>(id) >= parts_.tokens.size()) {
      parts_.tokens.resize(static_cast<size_t>(id) + 1);
    }
    return parts_.tokens[static_cast<size_t>(id)];
  }

  void read_vocab() {
    if (!json_.has_vocab) return;
    std::vector<bool> taken;
    const int64_t ids = std::min(kMostId, most_ids(json_.vocab.size()));
    for (const auto& [token, id] : json_.vocab) {
      if (id < 0 || id >= ids) {
        refuse("model.vocab has the id", id, "for", to_text(token) + ", where 0 to", ids - 1,
               "is expected for", json_.vocab.size(), "tokens");
      }
      if (token.size() > 4 * kLongestToken) {
        refuse("model.vocab has a token of", token.size(), "bytes, the id", id, "where",
               4 * kLongestToken, "at most are supported");
      }
      std::string& place = slot(id);
      taken.resize(parts_.tokens.size());
      if (taken[static_cast<size_t>(id)]) {
        refuse("model.vocab gives the id", id, "to two tokens,", to_text(place), "and",
               to_text(token));
      }
      taken[static_cast<size_t>(id)] = true;
      place = token;
      if (!vocab_.add(token, static_cast<TokenId>(id))) {
        refuse("model.vocab names the token", to_text(token), "twice");
      }
    }
  }

  TokenId in_vocab(const std::string& token, const std::string& where) const {
    const TokenId id = vocab_.find(token);
    if (id < 0) refuse(where, "names", to_text(token) + ", which is not in model.vocab");
    return id;
  }

  void read_model(const JsonNode& model) {
    if (!model.has("type") && !json_.has_merges) model.refuse("has no type");
    if (model.has("type") && model.text("type") != "BPE") {
      model.refuse("is of type", model.text("type"), "which is not supported: there is BPE");
    }
    if (!json_.has_vocab || !json_.has_merges) {
      model.refuse("has no", json_.has_vocab ? "merges" : "vocab");
    }
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      if (model.has(name) && !model.text(name).empty()) {
        model.at(name).refuse("is", to_text(model.text(name)) + ", and only none is supported");
      }
    }
    if (model.has("dropout") && !model.at("dropout").is_zero()) {
      model.at("dropout").refuse("is set, and would give a text other ids each time");
    }
    warn_of_unknown(model);
    BpeSpec& bpe = parts_.bpe;
    bpe.bytes = parts_.pre_tokenizer.byte_level();
    bpe.fuse_unk = model.flag("fuse_unk", false);
    bpe.whole_first = model.flag("ignore_merges", false);
    if (model.has("unk_token")) bpe.unk = in_vocab(model.text("unk_token"), "model.unk_token");
    parts_.special.unk = bpe.unk;
    read_byte_fallback(model);
    read_merges();
    add_spellings();
  }

  void warn_of_unknown(const JsonNode& model) {
    static constexpr std::array kKnown = {"type",
                                          "dropout",
                                          "unk_token",
                                          "fuse_unk",
                                          "continuing_subword_prefix",
                                          "end_of_word_suffix",
                                          "byte_fallback",
                                          "ignore_merges"};
    for (const auto& [name, value] : model.fields()) {
      if (std::find(kKnown.begin(), kKnown.end(), name) == kKnown.end()) {
        warn("model has a field that is not known, " + to_text(name));
      }
    }
  }

  void read_byte_fallback(const JsonNode& model) {
    BpeSpec& bpe = parts_.bpe;
    bpe.byte_fallback = model.flag("byte_fallback", false);
    if (!bpe.byte_fallback) return;
    if (bpe.bytes) model.refuse("has byte_fallback, and the pre-tokenizer makes bytes of all");
    static constexpr std::string_view kDigits = "0123456789ABCDEF";
    for (size_t byte = 0; byte < 256; ++byte) {
      const std::string token = std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + '>';
      bpe.byte_tokens[byte] = vocab_.find(token);
    }
  }

  void read_merges() {
    parts_.bpe.merges.reserve(json_.merges.size());
    for (const auto& [left, right] : json_.merges) {
      const auto where = [&] {
        return "model.merges[" + std::to_string(parts_.bpe.merges.size()) + "]";
      };
      const TokenId a = vocab_.find(left), b = vocab_.find(right), both = vocab_.find(left + right);
      if (a < 0 || b < 0 || both < 0) {
        in_vocab(a < 0 ? left : b < 0 ? right : left + right, where());
      }
      parts_.bpe.merges.push_back({a, b, both});
    }
  }

  // What the tokens are in the text that the model sees.
  void add_spellings() {
    std::string bytes;
    for (const auto& [token, id] : json_.vocab) {
      if (token.empty()) continue;
      if (!parts_.bpe.bytes) {
        parts_.bpe.tokens.emplace_back(token, static_cast<TokenId>(id));
      } else if (from_byte_alphabet(token, bytes)) {
        parts_.bpe.tokens.emplace_back(bytes, static_cast<TokenId>(id));
      }
    }
  }

  struct Added {
    int64_t id;
    size_t place;  // in parts_.added
  };

  void read_added(const JsonNode& root) {
    // As the reference assigns ids: a token of the vocabulary keeps its own, a new one gets the
    // next.
    auto next = static_cast<int64_t>(json_.vocab.size());
    std::map<std::string, Added> known_so_far;
    for (const JsonNode& node : root.items("added_tokens")) {
      const AddedToken token = read_token(node);
      if (token.content.empty()) {
        warn("an added token of no content is ignored, id " + std::to_string(token.id));
        continue;
      }
      const auto [at, is_new] =
          known_so_far.emplace(token.content, Added{next, parts_.added.size()});
      const TokenId known = vocab_.find(token.content);
      const int64_t assigned = known >= 0 ? known : at->second.id;
      if (assigned != token.id) {
        node.refuse("gives", to_text(token.content), "the id", token.id,
                    "where the tokenizers library assigns", assigned,
                    known >= 0 ? "(its id in model.vocab)" : "(the next that is free)");
      }
      if (known < 0 && is_new) next = std::max(next, assigned + 1);
      add_token(token, at->second.place);
    }
    std::sort(parts_.added.begin(), parts_.added.end(),
              [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  }

  // Where it was given before, the last one counts.
  void add_token(const AddedToken& token, size_t at) {
    std::string& place = slot(token.id);
    if (!place.empty() && place != token.content) {
      refuse("added_tokens gives the id", token.id, "to", to_text(token.content) + ", and it is",
             to_text(place) + "'s");
    }
    place = token.content;
    parts_.added.resize(std::max(parts_.added.size(), at + 1));
    parts_.added[at] = token;
  }

  AddedToken read_token(const JsonNode& node) const {
    node.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken out{.content = node.text("content"),
                   .special = node.flag("special"),
                   .single_word = node.flag("single_word"),
                   .lstrip = node.flag("lstrip"),
                   .rstrip = node.flag("rstrip"),
                   .normalized = node.flag("normalized")};
    const int64_t id = node.at("id").integer();
    if (id < 0 || id >= kMostId) {
      node.at("id").refuse("is", id, "where 0 to", kMostId - 1, "is expected");
    }
    if (out.content.size() > kLongestToken) {
      node.at("content").refuse("has", out.content.size(), "bytes, and an added token",
                                kLongestToken, "at most");
    }
    out.id = static_cast<TokenId>(id);
    return out;
  }

  void read_post(const JsonNode& node) {
    const std::string type = node.text("type");
    if (type == "Sequence") {
      node.only({"type", "processors"});
      for (const JsonNode& step : node.items("processors")) read_post(step);
    } else if (type == "TemplateProcessing") {
      read_template(node);
    } else if (type != "ByteLevel") {  // which moves offsets alone
      node.refuse("is of type", type,
                  "which is not supported: there are TemplateProcessing, ByteLevel, Sequence");
    }
  }

  void read_template(const JsonNode& node) {
    node.only({"type", "single", "pair", "special_tokens"});
    bool behind = false;
    for (const JsonNode& item : node.items("single")) {
      if (item.has("Sequence")) {
        if (behind) item.refuse("names the text a second time");
        behind = true;
        continue;
      }
      const std::string name = item.at("SpecialToken").text("id");
      for (const JsonNode& id : node.at("special_tokens").at(name).items("ids")) {
        const int64_t value = id.integer();
        if (value < 0 || value >= static_cast<int64_t>(parts_.tokens.size())) {
          id.refuse("is", value, "which is no token's id");
        }
        if (parts_.before.size() + parts_.after.size() == kMostAround) {
          node.refuse("puts more than", kMostAround, "ids around a text");
        }
        (behind ? parts_.after : parts_.before).push_back(static_cast<TokenId>(value));
      }
    }
    if (!behind) node.refuse("does not say where the text goes");
  }

  TokenizerJson json_;
  const std::string& file_;
  TokenTable vocab_;
  BpeTokenizerParts parts_;
};

// A token of tokenizer_config.json: its spelling, or an object that holds it.
std::string named_token(const JsonNode& config, const std::string& name) {
  if (!config.has(name)) return {};
  const JsonNode node = config.at(name);
  return node.is_map() ? node.text("content") : node.text();
}

void read_special(const std::string& config, const std::string& file, BpeTokenizerParts& parts) {
  TokenTable ids;
  for (size_t id = 0; id < parts.tokens.size(); ++id)
    ids.add(parts.tokens[id], static_cast<TokenId>(id));
  if (config.empty()) {
    parts.special = special_by_name(parts.added, parts.special.unk);
    return;
  }
  const nlohmann::json document = parse_small_json(config, file);
  const JsonNode root(document, file, "");
  const auto read = [&](const char* name, TokenId& out) {
    const std::string token = named_token(root, name);
    if (token.empty()) return;
    out = ids.find(token);
    if (out < 0) root.at(name).refuse("is", to_text(token) + ", which the tokenizer does not have");
  };
  read("bos_token", parts.special.bos);
  read("eos_token", parts.special.eos);
  read("pad_token", parts.special.pad);
  read("unk_token", parts.special.unk);
}

std::unique_ptr<Tokenizer> build(const std::string& json, const std::string& file,
                                 const std::string& config, const std::string& config_file) {
  BpeTokenizerParts parts = Reader(parse_tokenizer_json(json, file), file).run();
  read_special(config, config_file, parts);
  parts.fingerprint = hash128(std::as_bytes(std::span(json)));
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

// The lines of merges.txt as the list of a tokenizer.json.
std::vector<std::pair<std::string, std::string>> parse_merges(const std::string& text,
                                                              const std::string& file) {
  std::vector<std::pair<std::string, std::string>> out;
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
    const size_t space = line.find(' ');
    if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos) {
      fail(Code::kBadTokenizer, file + ":" + std::to_string(number),
           "two parts are expected, found", to_text(line));
    }
    if (space == 0 || space + 1 == line.size()) {
      fail(Code::kBadTokenizer, file + ":" + std::to_string(number), "a part is empty");
    }
    out.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  return out;
}

}  // namespace

std::string tokenizer_config_beside(const std::string& path) {
  const auto config = std::filesystem::path(path).parent_path() / "tokenizer_config.json";
  return is_there(config.string()) ? config.string() : std::string();
}

std::unique_ptr<Tokenizer> parse_tokenizer(const std::string& json, const std::string& config,
                                           const std::string& file) {
  return build(json, file, config, file);
}

std::unique_ptr<Tokenizer> open_tokenizer_json(const std::string& path) {
  const std::string config = tokenizer_config_beside(path);
  const std::string text =
      config.empty() ? "" : read_file(config, Code::kUnreadableData, kLongestTokenizerFile);
  return build(read_file(path, Code::kUnreadableData, kLongestTokenizerFile), path, text, config);
}

std::unique_ptr<Tokenizer> open_gpt2_files(const std::string& vocab, const std::string& merges) {
  const std::string ids = read_file(vocab, Code::kUnreadableData, kLongestTokenizerFile);
  const std::string pairs = read_file(merges, Code::kUnreadableData, kLongestTokenizerFile);
  // As the tokenizer.json that the two are half of.
  static const std::string head =
      R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
          "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "merges": [], "vocab": )";
  TokenizerJson json = parse_tokenizer_json(head + ids + "}}", vocab);
  json.merges = parse_merges(pairs, merges);
  const bool has_end = std::any_of(json.vocab.begin(), json.vocab.end(), [](const auto& entry) {
    return entry.first == "<|endoftext|>";
  });
  BpeTokenizerParts parts = Reader(std::move(json), vocab).run();
  parts.kind = "gpt2";
  if (has_end) {
    const auto at = std::find(parts.tokens.begin(), parts.tokens.end(), "<|endoftext|>");
    const auto id = static_cast<TokenId>(at - parts.tokens.begin());
    parts.added = {{.id = id, .content = *at, .special = true, .normalized = false}};
    parts.special = {.bos = id, .eos = id, .pad = -1, .unk = id};
  }
  Hasher hasher;
  hasher.update(ids);
  hasher.update(pairs);
  parts.fingerprint = hasher.digest128();
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

}  // namespace troupe
