#include "troupe/distributed/mesh/dealing.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "troupe/core/check.h"

namespace troupe {
namespace {

constexpr int64_t kChunksOfRank = 8;

// [S]: the keys that token t of each row sees, all rows together.
std::vector<int64_t> pairs_of_tokens(const WholeRows& whole, int64_t tokens) {
  TROUPE_CHECK(whole.documents.empty() || std::ssize(whole.documents) == whole.rows * tokens,
               "documents of", whole.documents.size(), "tokens, in", whole.rows, "rows of", tokens);
  std::vector<int64_t> out(static_cast<size_t>(tokens));
  for (int64_t b = 0; b < whole.rows; ++b) {
    int64_t seen = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      const auto at = static_cast<size_t>(b * tokens + t);
      const bool begins =
          t == 0 || (!whole.documents.empty() && whole.documents[at] != whole.documents[at - 1]);
      seen = begins ? 1 : seen + 1;
      out[static_cast<size_t>(t)] += seen;
    }
  }
  return out;
}

int64_t most_of(const TokenChunks& chunks, const std::vector<int64_t>& pairs) {
  std::vector<int64_t> of_rank(static_cast<size_t>(chunks.ranks()));
  for (int64_t t = 0; t < chunks.tokens(); ++t) {
    of_rank[static_cast<size_t>(chunks.place_of(t).rank)] += pairs[static_cast<size_t>(t)];
  }
  return *std::ranges::max_element(of_rank);
}

TokenChunks by_pairs(int64_t ranks, const std::vector<int64_t>& pairs) {
  const int64_t chunks = kChunksOfRank * ranks, n = std::ssize(pairs) / chunks;
  std::vector<std::pair<int64_t, int64_t>> costs;  // less of them first, then the place
  for (int64_t c = 0; c < chunks; ++c) {
    const auto from = pairs.begin() + c * n;
    costs.emplace_back(-std::accumulate(from, from + n, int64_t{0}), c);
  }
  std::ranges::sort(costs);
  struct Load {
    int64_t pairs = 0;
    std::vector<TokenRun> runs = {};
  };
  std::vector<Load> loads(static_cast<size_t>(ranks));
  for (const auto& [cost, c] : costs) {
    Load& least = *std::ranges::min_element(loads, {}, [](const Load& l) {
      return std::pair(std::ssize(l.runs) == kChunksOfRank, l.pairs);
    });
    least.pairs -= cost;
    least.runs.push_back({c * n, n});
  }
  std::vector<std::vector<TokenRun>> out;
  for (Load& load : loads) {
    std::ranges::sort(load.runs, {}, &TokenRun::from);
    out.push_back(std::move(load.runs));
  }
  return TokenChunks(std::move(out));
}

}  // namespace

TokenChunks dealt(Dealing dealing, int64_t ranks, int64_t tokens, const WholeRows& whole) {
  TokenChunks zigzag = TokenChunks::zigzag(ranks, tokens);
  const bool divides = tokens > 0 && tokens % (kChunksOfRank * ranks) == 0;
  if (dealing == Dealing::kZigzag || ranks == 1 || !divides) return zigzag;
  const std::vector<int64_t> pairs = pairs_of_tokens(whole, tokens);
  TokenChunks even = by_pairs(ranks, pairs);
  return 30 * most_of(even, pairs) <= 29 * most_of(zigzag, pairs) ? even : zigzag;
}

}  // namespace troupe
