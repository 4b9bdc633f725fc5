// How the tokens of a row are dealt to the ranks of a context group (rule CX1): arithmetic alone.
//
//   zigzag(R, S)   the row is cut into 2 R chunks of S / (2 R) tokens; rank r has chunks r and
//                  2 R - 1 - r, so that under causal attention all ranks have as many pairs of a
//                  query and a key
//
// A rank's own tokens are in the order of the row: own token i of rank r is token tokens_of(r)[i].
// Whatever is derived from a dealing reads it from here, so that another one is another function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe {

struct TokenRun {
  int64_t from = 0, count = 0;

  int64_t end() const { return from + count; }
  bool operator==(const TokenRun&) const = default;
};

class TokenChunks {
 public:
  TokenChunks() = default;  // rows of no tokens, on one rank
  // S must be a multiple of 2 R, or R be 1.
  static TokenChunks zigzag(int64_t ranks, int64_t tokens);
  // runs[r]: rank r's, ascending. Every token is in one run, and all ranks have equally many.
  explicit TokenChunks(std::vector<std::vector<TokenRun>> runs);

  int64_t ranks() const { return static_cast<int64_t>(runs_.size()); }
  int64_t tokens() const { return static_cast<int64_t>(places_.size()); }  // S
  int64_t own_tokens() const { return tokens() / ranks(); }                // S / R
  const std::vector<TokenRun>& runs_of(int64_t rank) const {               // neighbors are joined
    return runs_[static_cast<size_t>(rank)];
  }
  std::vector<int64_t> tokens_of(int64_t rank) const;  // ascending

  // Whose a token of the row is, and which of that rank's own.
  struct Place {
    int64_t rank = 0, own = 0;
  };
  const Place& place_of(int64_t token) const { return places_[static_cast<size_t>(token)]; }

 private:
  std::vector<std::vector<TokenRun>> runs_ = {{}};
  std::vector<Place> places_;  // [S]
};

// The least number of tokens, from `tokens` on, that zigzag() takes.
int64_t padded_tokens(int64_t ranks, int64_t tokens);

}  // namespace troupe
