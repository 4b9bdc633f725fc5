// The one file that knows libsentencepiece.
#include "troupe/data/tokenizer/sentencepiece.h"

#include <sentencepiece_processor.h>

#include "troupe/core/check.h"
#include "troupe/core/file.h"
#include "troupe/data/tokenizer/decoder.h"
#include "troupe/data/tokenizer/sentencepiece_model.h"
#include "troupe/data/tokenizer/token_table.h"
#include "troupe/data/tokenizer/utf8.h"

namespace troupe {
namespace {

constexpr int64_t kMostFileBytes = int64_t{256} << 20;
using Type = SentencePieceModel::Type;

class SentencePiece : public Tokenizer {
 public:
  SentencePiece(SentencePieceModel model, const std::string& bytes, const std::string& file)
      : model_(std::move(model)), fingerprint_(hash128(std::as_bytes(std::span(bytes)))) {
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
    std::vector<int> found;
    const auto status = processor_.Encode(text, &found);
    TROUPE_CHECK(status.ok(), "SentencePiece:", status.ToString());
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

  // The library says nothing for a control piece, whatever the options.
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
  TokenTable by_piece_;
  sentencepiece::SentencePieceProcessor processor_;
};

}  // namespace

std::unique_ptr<Tokenizer> parse_sentencepiece(const std::string& bytes, const std::string& file) {
  return std::make_unique<SentencePiece>(check_sentencepiece(bytes, file), bytes, file);
}

std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path) {
  return parse_sentencepiece(read_file(path, Code::kUnreadableData, kMostFileBytes), path);
}

}  // namespace troupe
