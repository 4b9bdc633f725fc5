#include "troupe/data/tokenizer/bytes.h"

#include <algorithm>

#include "troupe/core/check.h"
#include "troupe/core/text/text.h"
#include "troupe/core/text/utf8.h"

namespace troupe {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

class BytesTokenizer : public Tokenizer {
 public:
  void append(std::string_view text, const EncodeOptions&,
              std::vector<TokenId>& ids) const override {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    ids.insert(ids.end(), bytes, bytes + text.size());
  }
  int64_t vocab_size() const override { return 256; }
  std::string token(TokenId id) const override {
    return is_byte(id) ? std::string(1, static_cast<char>(id)) : std::string();
  }
  TokenId find(std::string_view token) const override {
    return token.size() == 1 ? static_cast<unsigned char>(token[0]) : -1;
  }
  SpecialIds special() const override { return {}; }
  std::string_view kind() const override { return "bytes"; }
  Hash128 fingerprint() const override {
    return hash128(std::as_bytes(std::span(std::string_view("bytes"))));
  }

 private:
  static bool is_byte(TokenId id) { return id >= 0 && id < 256; }

  static std::string bytes_of(std::span<const TokenId> ids) {
    std::string bytes;
    for (const TokenId id : ids) {
      if (is_byte(id)) bytes.push_back(static_cast<char>(id));
    }
    return bytes;
  }
  std::string text_of(std::span<const TokenId> ids, const DecodeOptions&) const override {
    return repaired_utf8(bytes_of(ids));
  }
  bool open_ended(std::span<const TokenId> ids, const DecodeOptions&) const override {
    return incomplete_utf8_tail(bytes_of(ids)) > 0;
  }
};

class NullTokenizer : public Tokenizer {
 public:
  NullTokenizer(std::string name, TokenId count) : name_(std::move(name)), count_(count) {}

  void append(std::string_view text, const EncodeOptions&,
              std::vector<TokenId>& ids) const override {
    for (size_t at = text.find_first_not_of(kBlanks); at < text.size();) {
      const size_t end = std::min(text.find_first_of(kBlanks, at), text.size());
      const std::string_view word = text.substr(at, end - at);
      const TokenId id = find(word);
      if (id < 0) {
        fail(Code::kBadTokenizer, name_, "the text has", to_text(std::string(word)), "at byte", at,
             "where an id from 0 to", count_, "is expected");
      }
      ids.push_back(id);
      at = text.find_first_not_of(kBlanks, end);
    }
  }
  int64_t vocab_size() const override { return int64_t{count_} + 1; }
  std::string token(TokenId id) const override {
    return id >= 0 && id <= count_ ? std::to_string(id) : std::string();
  }
  TokenId find(std::string_view token) const override {
    TokenId id = -1;
    return from_text(token, id) && id >= 0 && id <= count_ ? id : -1;
  }
  SpecialIds special() const override { return {.eos = count_}; }
  std::string_view kind() const override { return "null"; }
  Hash128 fingerprint() const override { return hash128(std::as_bytes(std::span(name_))); }

 private:
  std::string text_of(std::span<const TokenId> ids, const DecodeOptions&) const override {
    std::string out;
    for (const TokenId id : ids) {
      if (!out.empty() && id >= 0 && id <= count_) out += ' ';
      out += token(id);
    }
    return out;
  }
  bool open_ended(std::span<const TokenId>, const DecodeOptions&) const override { return false; }

  const std::string name_;
  const TokenId count_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bytes_tokenizer() {
  return std::make_unique<BytesTokenizer>();
}

std::unique_ptr<Tokenizer> make_null_tokenizer(const std::string& name) {
  constexpr TokenId kMost = TokenId{1} << 24;
  TokenId count = 0;
  const size_t colon = name.find(':');
  if (colon == std::string::npos || !from_text(name.substr(colon + 1), count) || count < 1 ||
      count > kMost) {
    fail(Code::kBadTokenizer, name, "names no vocabulary: null:N is expected, N from 1 to", kMost);
  }
  return std::make_unique<NullTokenizer>(name, count);
}

}  // namespace troupe
