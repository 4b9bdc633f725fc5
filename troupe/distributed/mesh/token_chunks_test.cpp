#include "troupe/distributed/mesh/token_chunks.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "troupe/core/check.h"

namespace troupe {
namespace {

TEST(TokenChunks, CX1_OneRankHasAll) {
  const TokenChunks chunks = TokenChunks::zigzag(1, 7);  // any number
  EXPECT_EQ(chunks.runs_of(0), (std::vector<TokenRun>{{0, 7}}));
  EXPECT_EQ(TokenChunks().tokens(), 0);
}

TEST(TokenChunks, CX1_RanksHaveAnEarlyAndALateChunk) {
  const TokenChunks chunks = TokenChunks::zigzag(3, 12);
  EXPECT_EQ(chunks.tokens_of(0), (std::vector<int64_t>{0, 1, 10, 11}));
  EXPECT_EQ(chunks.tokens_of(1), (std::vector<int64_t>{2, 3, 8, 9}));
  EXPECT_EQ(chunks.runs_of(1), (std::vector<TokenRun>{{2, 2}, {8, 2}}));
  EXPECT_EQ(chunks.runs_of(2), (std::vector<TokenRun>{{4, 4}}));  // neighbors
}

TEST(TokenChunks, CX1_RanksHaveAsManyPairsAndEachTokenOnce) {
  for (int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (const int64_t chunk : {0, 1, 3, 8}) {
      const int64_t S = 2 * ranks * chunk;
      const TokenChunks chunks = TokenChunks::zigzag(ranks, S);
      EXPECT_EQ(chunks.tokens(), S);
      std::vector<int64_t> seen(static_cast<size_t>(S));
      for (int64_t r = 0; r < ranks; ++r) {
        const std::vector<int64_t> own = chunks.tokens_of(r);
        EXPECT_EQ(std::ssize(own), chunks.own_tokens());
        int64_t pairs = 0;
        for (int64_t i = 0; i < std::ssize(own); ++i) {
          const int64_t token = own[static_cast<size_t>(i)];
          ++seen[static_cast<size_t>(token)];
          EXPECT_EQ(chunks.place_of(token).rank, r);
          EXPECT_EQ(chunks.place_of(token).own, i);
          pairs += token + 1;
        }
        EXPECT_EQ(pairs * ranks, S * (S + 1) / 2) << ranks << " ranks, rank " << r;
      }
      EXPECT_EQ(seen, std::vector<int64_t>(static_cast<size_t>(S), 1));
    }
  }
}

TEST(TokenChunks, CX1_RowsArePaddedToWholeChunks) {
  EXPECT_EQ(padded_tokens(1, 7), 7);
  EXPECT_EQ(padded_tokens(3, 12), 12);
  EXPECT_EQ(padded_tokens(3, 13), 18);
  EXPECT_EQ(padded_tokens(2, 1), 4);
}

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "none";
}

TEST(TokenChunks, RefusesWhatIsNotDealtOnce) {
  const auto expect = [](const std::string& got, const char* want) {
    EXPECT_NE(got.find(want), std::string::npos) << got;
  };
  expect(refusal([] { TokenChunks::zigzag(2, 6); }), "rows of 6 tokens cannot be cut into 2 x 2");
  expect(refusal([] { TokenChunks({{{0, 2}}, {{1, 2}}}); }), "token 1 is dealt to ranks 0 and 1");
  expect(refusal([] { TokenChunks({{{0, 1}}, {{1, 3}}}); }), "rank 0 of 2 has 1 of 4 tokens");
  expect(refusal([] { TokenChunks({{{2, 2}, {0, 2}}}); }), "behind 4");
}

}  // namespace
}  // namespace troupe
