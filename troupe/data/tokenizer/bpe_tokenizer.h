// Byte pair encoding with all that stands around it: what tokenizer.json, GPT-2's two files and
// tiktoken's ranks have in common.
//   text -> added tokens | rest -> normalized -> added tokens | rest -> pieces -> ids
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "troupe/data/tokenizer/bpe.h"
#include "troupe/data/tokenizer/decoder.h"
#include "troupe/data/tokenizer/normalizer.h"
#include "troupe/data/tokenizer/pre_tokenizer.h"
#include "troupe/data/tokenizer/token_matcher.h"
#include "troupe/data/tokenizer/tokenizer.h"

namespace troupe {

struct BpeTokenizerParts {
  std::string_view kind;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeSpec bpe;
  Decoder decoder;
  std::vector<std::string> tokens;     // by id, as the file spells them; "": no such id
  std::vector<AddedToken> added;       // by id
  std::vector<TokenId> before, after;  // what add_special puts around a text
  SpecialIds special;
  Hash128 fingerprint;
  std::vector<std::string> warnings;
};

class BpeTokenizer : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeTokenizerParts parts);
  ~BpeTokenizer() override;

  void append(std::string_view text, const EncodeOptions& options,
              std::vector<TokenId>& ids) const override;
  int64_t vocab_size() const override { return static_cast<int64_t>(parts_.tokens.size()); }
  std::string token(TokenId id) const override;
  TokenId find(std::string_view token) const override { return by_token_.find(token); }
  SpecialIds special() const override { return parts_.special; }
  std::vector<AddedToken> added_tokens() const override { return parts_.added; }
  std::string_view kind() const override { return parts_.kind; }
  Hash128 fingerprint() const override { return parts_.fingerprint; }
  std::vector<std::string> warnings() const override { return parts_.warnings; }

 private:
  struct Scratch;
  class Lease;

  std::string text_of(std::span<const TokenId> ids, const DecodeOptions& options) const override;
  bool open_ended(std::span<const TokenId> ids, const DecodeOptions& options) const override;
  void append_raw(std::string_view part, bool at_start, Scratch& scratch,
                  std::vector<TokenId>& ids) const;
  void append_pieces(std::string_view text, bool at_start, Scratch& scratch,
                     std::vector<TokenId>& ids) const;
  const std::string& spelling(TokenId id) const;
  bool says_something(TokenId id, const DecodeOptions& options) const;

  const Bpe bpe_;
  const BpeTokenizerParts parts_;  // but what bpe_ took
  TokenTable by_token_;
  TokenMatcher raw_, normalized_;                       // of added tokens
  std::map<TokenId, std::string> normalized_spelling_;  // of added tokens that are sought so
  std::vector<bool> is_special_;
  std::vector<std::string> bytes_;  // by id, what each says, where that is all there is to it
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;  // one for each call that ever ran at once
};

}  // namespace troupe
