#include "troupe/plan/pairs.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

TEST(Pairs, ASlowLinkIsNamedByItsEndsAmongThoseOfItsKind) {
  std::vector<PairRate> pairs;
  for (int64_t a = 0; a < 4; ++a) {
    for (int64_t b = a + 1; b < 4; ++b) {
      const bool one_host = a / 2 == b / 2;
      pairs.push_back({a, b, one_host, one_host ? 400e9 : 40e9});
    }
  }
  EXPECT_TRUE(slow_pairs(pairs).empty());
  for (PairRate& p : pairs) {
    if (p.a == 1 && p.b == 2) p.bandwidth = 8e9;
  }
  EXPECT_EQ(slow_pairs(pairs),
            std::vector<std::string>{"between rank 1 and rank 2: 8e+09 bytes/s is 20% of the 4e+10 "
                                     "that half of the pairs of two hosts reach"});
  pairs.resize(2);  // which of two is the slow one?
  pairs[0].bandwidth = 1;
  EXPECT_TRUE(slow_pairs(pairs).empty());
}

}  // namespace
}  // namespace troupe
