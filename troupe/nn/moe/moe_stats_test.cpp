#include "troupe/nn/moe/moe_stats.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

namespace troupe {
namespace {

MoeStats counts(std::initializer_list<int64_t> values) {
  return {.counts_E = at::tensor(std::vector<int64_t>(values), at::kLong)};
}

TEST(MoeStats, A8_MicrobatchesAddUp) {
  MoeStats s = counts({6, 2, 0, 4});
  s.dropped = at::full({}, 3, at::kLong);
  MoeStats more = counts({0, 0, 5, 1});
  more.saturated = at::full({1}, 2, at::kLong);
  s += more;
  s += more;
  EXPECT_TRUE(s.counts_E.equal(at::tensor({6, 2, 10, 6}, at::kLong)));
  EXPECT_EQ(s.dropped.item<int64_t>(), 3);
  EXPECT_EQ(s.saturated.item<int64_t>(), 4);
  EXPECT_FALSE(s.forced);
  more.forced = true;
  EXPECT_TRUE((s += more).forced);
}

TEST(MoeStats, R6_TheScoresSumIsTheMeanOverAllMicrobatches) {
  MoeStats s = counts({1});
  s.score_sum = at::full({}, 1.0);
  MoeStats other = counts({1});
  other.score_sum = at::full({}, 4.0);
  MoeStats two = other;
  two += other;
  s += two;
  EXPECT_DOUBLE_EQ(s.score_sum.item<double>(), 3);
  s += counts({1});  // one without keeps it
  EXPECT_DOUBLE_EQ(s.score_sum.item<double>(), 3);
}

}  // namespace
}  // namespace troupe
