// The only file that includes libsentencepiece.
#include "troupe/data/tokenizer/sentencepiece.h"

#include <sentencepiece_processor.h>

#include <algorithm>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/core/text/utf8.h"
#include "troupe/data/tokenizer/bpe_tokenizer.h"
#include "troupe/data/tokenizer/decoder.h"
#include "troupe/data/tokenizer/sentencepiece_model.h"
#include "troupe/data/tokenizer/token_table.h"

namespace troupe {
namespace {

using Type = SentencePieceModel::Type;

// Whether every character of every piece is a piece itself: then both sides of a merge have an id.
bool has_all_characters(const std::vector<std::pair<std::string, TokenId>>& tokens,
                        const TokenTable& ids) {
  return std::all_of(tokens.begin(), tokens.end(), [&](const auto& token) {
    const std::string_view text = token.first;
    for (size_t at = 0; at < text.size();) {
      const size_t bytes = utf8_at(text, at).bytes;
      if (ids.find(text.substr(at, bytes)) < 0) return false;
      at += bytes;
    }
    return true;
  });
}

// Adds each split of a piece into two pieces as a merge, the highest score first. Equal scores
// share a rank.
void add_merges(const SentencePieceModel& model, const TokenTable& ids, BpeSpec& spec) {
  std::vector<std::pair<std::string, TokenId>> order = spec.tokens;
  const auto score = [&](TokenId id) { return model.pieces[static_cast<size_t>(id)].score; };
  std::stable_sort(order.begin(), order.end(),
                   [&](const auto& a, const auto& b) { return score(a.second) > score(b.second); });
  uint32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const std::string_view text = order[i].first;
    if (i > 0 && score(order[i].second) != score(order[i - 1].second)) ++rank;
    for (size_t cut = utf8_at(text, 0).bytes; cut < text.size(); cut += utf8_at(text, cut).bytes) {
      const TokenId left = ids.find(text.substr(0, cut)), right = ids.find(text.substr(cut));
      if (left < 0 || right < 0) continue;
      spec.merges.push_back({left, right, order[i].second});
      spec.ranks.push_back(rank);
    }
  }
}

// The model as a BpeTokenizer, which caches words: the library's ids, many times as fast. Null for
// a model that needs more: unigram scores, a map of characters, user-defined or unused pieces.
std::unique_ptr<const BpeTokenizer> own_encoder(const SentencePieceModel& model) {
  constexpr int64_t kBpe = 2;
  if (model.model_type != kBpe || model.changes_characters || model.drop_spaces ||
      !model.mark_spaces || model.suffix_spaces) {
    return nullptr;
  }
  BpeTokenizerParts parts;
  BpeSpec& spec = parts.bpe;
  spec.bytes = false;
  spec.byte_fallback = model.byte_fallback;
  spec.byte_tokens.fill(-1);
  spec.unk = model.special.unk;
  spec.fuse_unk = true;
  for (size_t i = 0; i < model.pieces.size(); ++i) {
    const auto& [text, score, type] = model.pieces[i];
    const auto id = static_cast<TokenId>(i);
    if (type == Type::kUserDefined || type == Type::kUnused) return nullptr;
    if (type == Type::kByte) spec.byte_tokens[static_cast<size_t>(byte_of_token(text))] = id;
    if (type == Type::kNormal) spec.tokens.emplace_back(text, id);
  }
  TokenTable ids;
  for (const auto& [text, id] : spec.tokens) ids.add(text, id);
  if (!has_all_characters(spec.tokens, ids)) return nullptr;
  add_merges(model, ids, spec);
  parts.normalizer = Normalizer::mark_spaces(model.add_prefix);
  return std::make_unique<const BpeTokenizer>(std::move(parts));
}

class SentencePiece : public Tokenizer {
 public:
  SentencePiece(SentencePieceModel model, const std::string& bytes, const std::string& file)
      : model_(std::move(model)),
        fingerprint_(hash128(std::as_bytes(std::span(bytes)))),
        encoder_(own_encoder(model_)) {
    const auto status = processor_.LoadFromSerializedProto(bytes);
    if (!status.ok())
      fail(Code::kBadTokenizer, file, "is refused by the library:", status.ToString());
    by_piece_.reserve(model_.pieces.size());
    for (size_t id = 0; id < model_.pieces.size(); ++id) {
      by_piece_.add(model_.pieces[id].text, static_cast<TokenId>(id));
    }
  }

  void append(std::string_view text, const EncodeOptions&,
              std::vector<TokenId>& ids) const override {
    // Invalid UTF-8 is left to the library, which repairs it in its own way.
    if (encoder_ != nullptr && is_utf8(text)) {
      return encoder_->append(text, {.add_special = false}, ids);
    }
    std::vector<int> found;
    // A BPE model whose control piece is one character cannot encode a text with that character.
    if (const auto status = processor_.Encode(text, &found); !status.ok()) {
      fail(Code::kBadTokenizer, "tokenizer",
           "SentencePiece cannot encode a text:", status.ToString());
    }
    ids.insert(ids.end(), found.begin(), found.end());
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(model_.pieces.size()); }
  std::string token(TokenId id) const override {
    return known(id) ? model_.pieces[static_cast<size_t>(id)].text : std::string();
  }
  TokenId find(std::string_view token) const override { return by_piece_.find(token); }
  SpecialIds special() const override { return model_.special; }
  std::string_view kind() const override { return "sentencepiece"; }
  Hash128 fingerprint() const override { return fingerprint_; }

  std::vector<AddedToken> added_tokens() const override {
    std::vector<AddedToken> out;
    for (size_t id = 0; id < model_.pieces.size(); ++id) {
      const Type type = model_.pieces[id].type;
      if (type != Type::kControl && type != Type::kUserDefined) continue;
      out.push_back({.id = static_cast<TokenId>(id),
                     .content = model_.pieces[id].text,
                     .special = type == Type::kControl,
                     .normalized = true});
    }
    return out;
  }

 private:
  bool known(TokenId id) const { return id >= 0 && id < vocab_size(); }
  Type type_of(TokenId id) const { return model_.pieces[static_cast<size_t>(id)].type; }

  // The library decodes a control piece to nothing, whatever the options say.
  std::string text_of(std::span<const TokenId> ids, const DecodeOptions&) const override {
    std::vector<int> known_ids;
    for (const TokenId id : ids) {
      if (known(id)) known_ids.push_back(id);
    }
    std::string text;
    const auto status = processor_.Decode(known_ids, &text);
    TROUPE_CHECK(status.ok(), "SentencePiece:", status.ToString());
    return is_utf8(text) ? text : repaired_utf8(text);
  }

  bool open_ended(std::span<const TokenId> ids, const DecodeOptions&) const override {
    std::string tail;
    for (size_t i = ids.size(); i-- > 0 && tail.size() < 4;) {
      if (!known(ids[i])) continue;
      if (type_of(ids[i]) != Type::kByte) break;
      const int byte = byte_of_token(model_.pieces[static_cast<size_t>(ids[i])].text);
      tail.insert(tail.begin(), static_cast<char>(byte));
    }
    return incomplete_utf8_tail(tail) > 0;
  }

  const SentencePieceModel model_;
  const Hash128 fingerprint_;
  const std::unique_ptr<const BpeTokenizer> encoder_;  // null: the library encodes
  TokenTable by_piece_;
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer> parse_sentencepiece(const std::string& bytes, const std::string& file) {
  return std::make_unique<SentencePiece>(check_sentencepiece(bytes, file), bytes, file);
}

std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path) {
  return parse_sentencepiece(read_file(path, Code::kUnreadableData, kLongestTokenizerFile), path);
}

}  // namespace troupe
