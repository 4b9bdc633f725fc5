// Byte pair encoding of one piece of text: it begins as symbols (bytes, or characters), and of all
// neighbors that make a known pair those of the lowest rank become one, the leftmost first, until
// there are none.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "troupe/data/tokenizer/pair_table.h"
#include "troupe/data/tokenizer/token_table.h"
#include "troupe/data/tokenizer/tokenizer.h"
#include "troupe/data/tokenizer/word_cache.h"

namespace troupe {

struct BpeMerge {
  TokenId left = 0, right = 0, result = 0;
};

struct BpeSpec {
  bool bytes = true;  // begin as bytes; else as characters of valid UTF-8
  // What the ids spell in the text. Those that no text can reach are left out.
  std::vector<std::pair<std::string, TokenId>> tokens;
  std::vector<BpeMerge> merges;  // by rank; of a pair given twice the last counts
  std::vector<uint32_t> ranks;   // of each merge, where several have one; empty: 0, 1, ...
  bool whole_first = false;      // a piece that is a token is that token ("ignore_merges")
  TokenId unk = -1;              // for a symbol that is no token; -1: it is dropped
  bool fuse_unk = false;         // one unk for a run of them
  bool byte_fallback = false;    // a character that is no token becomes bytes, where all are tokens
  std::array<TokenId, 256> byte_tokens{};  // -1: none
};

class Bpe {
 public:
  // What one thread needs; it remembers words, so it serves one Bpe alone.
  struct Scratch {
    WordCache cache;
    std::vector<TokenId> ids;
    std::vector<PairTable::Merge> merges;
    std::vector<int32_t> next, before;
    std::vector<uint64_t> heap;
  };

  explicit Bpe(BpeSpec spec);
  Bpe(Bpe&&) = default;  // no copies: the table points into the tokens

  // Adds the ids of `piece` to `out`. `end`: where the memory around it may be read to.
  void append(std::string_view piece, const char* end, Scratch& scratch,
              std::vector<TokenId>& out) const;

 private:
  void append_uncut(std::string_view piece, const char* end, Scratch& scratch,
                    std::vector<TokenId>& out) const;
  void encode(std::string_view piece, Scratch& scratch) const;
  void begin(std::string_view piece, std::vector<TokenId>& ids) const;
  void begin_characters(std::string_view piece, std::vector<TokenId>& ids) const;
  bool add_bytes_of(std::string_view character, std::vector<TokenId>& ids) const;
  void merge_short(std::vector<TokenId>& ids) const;
  void merge_long(Scratch& scratch) const;
  bool may_cut_before_spaces() const;

  BpeSpec spec_;
  TokenTable table_;
  PairTable pairs_;
  std::array<TokenId, 256> first_{};  // of each byte, or of each character below 0x80
  bool cut_ = false;
};

}  // namespace troupe
