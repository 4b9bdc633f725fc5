#include "troupe/distributed/group/rank_list.h"

#include <gtest/gtest.h>

#include <numeric>

namespace troupe {
namespace {

TEST(RankList, NamesEachOrTheEndsOfARun) {
  EXPECT_EQ(rank_list({}), "");
  EXPECT_EQ(rank_list({3}), "3");
  EXPECT_EQ(rank_list({0, 1, 2, 3}), "0, 1, 2, 3");
  EXPECT_EQ(rank_list({0, 1, 2, 3, 4}), "0 to 4");
  EXPECT_EQ(rank_list({7, 0, 2, 4, 6, 8, 9, 10, 11, 12, 14}), "7, 0, 2, 4, 6, 8 to 12, 14");
  std::vector<int64_t> many(3072);
  std::iota(many.begin(), many.end(), 0);
  EXPECT_EQ(rank_list(many), "0 to 3071");
  many.erase(many.begin() + 1000);
  EXPECT_EQ(rank_list(many), "0 to 999, 1001 to 3071");
}

TEST(RankList, TellsOrdersApart) {
  EXPECT_NE(rank_list({0, 1, 2, 3, 4}), rank_list({4, 3, 2, 1, 0}));
  EXPECT_NE(rank_list({0, 4}), rank_list({0, 1, 2, 3, 4}));
}

}  // namespace
}  // namespace troupe
