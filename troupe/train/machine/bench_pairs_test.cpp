#include "troupe/train/machine/bench_pairs.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

TEST(BenchPairs, EveryPairMeetsOnceAndBothKnowIt) {
  for (int64_t size = 2; size <= 9; ++size) {
    std::set<std::pair<int64_t, int64_t>> pairs;
    for (int64_t rank = 0; rank < size; ++rank) {
      const std::vector<int64_t> partners = partners_of(rank, size);
      for (size_t round = 0; round < partners.size(); ++round) {
        const int64_t other = partners[round];
        if (other < 0) continue;
        EXPECT_EQ(partners_of(other, size).at(round), rank) << size;
        EXPECT_TRUE(pairs.insert({rank, other}).second) << size;
      }
    }
    EXPECT_EQ(std::ssize(pairs), size * (size - 1));
  }
}

TEST(BenchPairs, EveryRankGetsTheRateOfEveryPair) {
  testing::in_ranks(3, [](World& world) {
    const std::vector<PairRate> pairs = bench_pairs(c10::kCPU, world);
    ASSERT_EQ(pairs.size(), 3);
    for (const PairRate& p : pairs) {
      EXPECT_TRUE(p.a < p.b && p.one_host && p.bandwidth > 1e6) << p.a << ' ' << p.b;
    }
  });
}

}  // namespace
}  // namespace troupe
