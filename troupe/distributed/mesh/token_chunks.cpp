#include "troupe/distributed/mesh/token_chunks.h"

#include <utility>

#include "troupe/core/check.h"

namespace troupe {

TokenChunks TokenChunks::zigzag(int64_t ranks, int64_t tokens) {
  TROUPE_CHECK(ranks >= 1 && tokens >= 0, "ranks", ranks, "tokens", tokens);
  if (ranks == 1) return TokenChunks({{{0, tokens}}});
  TROUPE_CHECK(tokens % (2 * ranks) == 0, "rows of", tokens, "tokens cannot be cut into 2 x", ranks,
               "chunks");
  const int64_t n = tokens / (2 * ranks);
  std::vector<std::vector<TokenRun>> runs;
  for (int64_t r = 0; r < ranks; ++r) runs.push_back({{r * n, n}, {(2 * ranks - 1 - r) * n, n}});
  return TokenChunks(std::move(runs));
}

TokenChunks::TokenChunks(std::vector<std::vector<TokenRun>> runs) {
  TROUPE_CHECK(!runs.empty(), "tokens are dealt to no ranks");
  int64_t tokens = 0;
  for (const auto& own : runs) {
    for (const TokenRun& run : own) tokens += run.count;
  }
  const auto ranks = static_cast<int64_t>(runs.size());
  places_.assign(static_cast<size_t>(tokens), {-1, 0});
  runs_.clear();
  for (int64_t r = 0; r < ranks; ++r) {
    std::vector<TokenRun>& joined = runs_.emplace_back();
    int64_t own = 0;
    for (const TokenRun& run : runs[static_cast<size_t>(r)]) {
      if (run.count == 0) continue;
      const int64_t before = joined.empty() ? 0 : joined.back().end();
      TROUPE_CHECK(run.count > 0 && run.from >= before && run.end() <= tokens, "rank", r,
                   "has tokens from", run.from, "to", run.end(), "of", tokens, "behind", before);
      for (int64_t t = run.from; t < run.end(); ++t) {
        Place& place = places_[static_cast<size_t>(t)];
        TROUPE_CHECK(place.rank < 0, "token", t, "is dealt to ranks", place.rank, "and", r);
        place = {r, own++};
      }
      if (!joined.empty() && before == run.from) {
        joined.back().count += run.count;
      } else {
        joined.push_back(run);
      }
    }
    TROUPE_CHECK(own * ranks == tokens, "rank", r, "of", ranks, "has", own, "of", tokens, "tokens");
  }
}

std::vector<int64_t> TokenChunks::tokens_of(int64_t rank) const {
  std::vector<int64_t> out;
  for (const TokenRun& run : runs_of(rank)) {
    for (int64_t t = run.from; t < run.end(); ++t) out.push_back(t);
  }
  return out;
}

int64_t padded_tokens(int64_t ranks, int64_t tokens) {
  if (ranks == 1) return tokens;
  const int64_t chunks = 2 * ranks;
  return (tokens + chunks - 1) / chunks * chunks;
}

}  // namespace troupe
