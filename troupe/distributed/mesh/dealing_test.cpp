#include "troupe/distributed/mesh/dealing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace troupe {
namespace {

// Documents of the given lengths, one row.
WholeRows row_of(const std::vector<int64_t>& lengths) {
  WholeRows out{.rows = 1};
  for (size_t d = 0; d < lengths.size(); ++d) {
    out.documents.insert(out.documents.end(), static_cast<size_t>(lengths[d]),
                         static_cast<int32_t>(d));
  }
  return out;
}

// Pairs of a query and a key that it sees, on the rank with most of them.
int64_t most_pairs(const TokenChunks& chunks, const WholeRows& whole) {
  std::vector<int64_t> of_rank(static_cast<size_t>(chunks.ranks()));
  for (int64_t b = 0; b < whole.rows; ++b) {
    int64_t begin = 0;
    for (int64_t t = 0; t < chunks.tokens(); ++t) {
      const auto at = static_cast<size_t>(b * chunks.tokens() + t);
      if (t > 0 && whole.documents[at] != whole.documents[at - 1]) begin = t;
      if (t == 0) begin = 0;
      of_rank[static_cast<size_t>(chunks.place_of(t).rank)] += t - begin + 1;
    }
  }
  return *std::ranges::max_element(of_rank);
}

int64_t all_pairs(const std::vector<int64_t>& lengths) {
  int64_t out = 0;
  for (const int64_t n : lengths) out += n * (n + 1) / 2;
  return out;
}

TEST(Dealing, CX2_ALongDocumentIsSharedByAll) {
  // Half of the row is one document, which zigzag gives to few ranks; the rest are short.
  std::vector<int64_t> lengths(64, 4);
  lengths.insert(lengths.begin(), 256);
  const WholeRows whole = row_of(lengths);
  const TokenChunks zigzag = dealt(Dealing::kZigzag, 4, 512, whole);
  const TokenChunks even = dealt(Dealing::kDocuments, 4, 512, whole);
  const double mean = static_cast<double>(all_pairs(lengths)) / 4;
  EXPECT_GT(static_cast<double>(most_pairs(zigzag, whole)), 1.5 * mean);
  EXPECT_LT(static_cast<double>(most_pairs(even, whole)), 1.1 * mean);
}

TEST(Dealing, CX2_IsZigzagWhereThatIsAsGoodOrRowsDoNotDivide) {
  const TokenChunks zigzag = TokenChunks::zigzag(4, 512);
  const TokenChunks whole = dealt(Dealing::kDocuments, 4, 512, {2, {}});
  for (int64_t r = 0; r < 4; ++r) EXPECT_EQ(whole.runs_of(r), zigzag.runs_of(r));
  const WholeRows odd = row_of({20, 2, 2});  // 24 tokens are not 32 chunks
  EXPECT_EQ(dealt(Dealing::kDocuments, 4, 24, odd).runs_of(0),
            TokenChunks::zigzag(4, 24).runs_of(0));
}

TEST(Dealing, CX2_IsNeverWorseAndDealsEachTokenOnce) {
  std::mt19937 random(5);
  int better = 0;
  for (int i = 0; i < 200; ++i) {
    const auto ranks = static_cast<int64_t>(1 + random() % 5);
    const int64_t S = 8 * ranks * static_cast<int64_t>(1 + random() % 5);
    WholeRows whole{.rows = static_cast<int64_t>(1 + random() % 3)};
    for (int64_t row = 0; row < whole.rows; ++row) {
      int32_t document = 0;
      const unsigned longest = 2 + random() % 40;
      for (int64_t t = 0; t < S; ++t) {
        whole.documents.push_back(document);
        document += random() % longest == 0;
      }
    }
    const TokenChunks chunks = dealt(Dealing::kDocuments, ranks, S, whole);
    ASSERT_EQ(chunks.tokens(), S);  // whose constructor checks that ranks have as many, each once
    ASSERT_EQ(chunks.ranks(), ranks);
    const int64_t most = most_pairs(chunks, whole);
    const int64_t before = most_pairs(TokenChunks::zigzag(ranks, S), whole);
    ASSERT_LE(most, before);
    better += most < before;
  }
  EXPECT_GT(better, 50);
}

}  // namespace
}  // namespace troupe
