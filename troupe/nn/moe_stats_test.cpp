#include "troupe/nn/moe_stats.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

namespace troupe {
namespace {

MoeStats counts(std::initializer_list<int64_t> values) {
  return {.counts_E = at::tensor(std::vector<int64_t>(values), at::kLong)};
}

void expect_has(const std::string& line, const char* part) {
  EXPECT_NE(line.find(part), std::string::npos) << line;
}

TEST(MoeStats, A8_LoadIsMeasuredAgainstTheMean) {
  MoeStats s = counts({6, 2, 0, 4});
  s.dropped = at::full({}, 3, at::kLong);
  const LoadStats l = load_stats(s);
  EXPECT_EQ(l.assignments, 12);
  EXPECT_DOUBLE_EQ(l.max_over_mean, 2);
  EXPECT_DOUBLE_EQ(l.min_over_mean, 0);
  EXPECT_DOUBLE_EQ(l.std, std::sqrt(5.0));
  EXPECT_EQ(l.dead_experts, 1);
  EXPECT_DOUBLE_EQ(l.dropped_fraction(), 0.25);
}

TEST(MoeStats, A8_MicrobatchesAddUp) {
  MoeStats s = counts({6, 2, 0, 4});
  s += counts({0, 0, 5, 1});
  EXPECT_EQ(load_stats(s).dead_experts, 0);
  EXPECT_EQ(load_stats(s).assignments, 18);
}

TEST(MoeStats, AHealthyLayerSaysSo) {
  const std::string line = health_line(3, load_stats(counts({10, 11, 9, 10})));
  expect_has(line, "layer 3: healthy");
  EXPECT_EQ(line.find("FORCED"), std::string::npos);
}

TEST(MoeStats, AnUnhealthyLayerSaysWhy) {
  MoeStats s = counts({100, 0, 0, 0});
  s.dropped = at::full({}, 50, at::kLong);
  s.score_sum = at::full({}, 1e-5);
  const std::string line = health_line(7, load_stats(s));
  expect_has(line, "layer 7: not healthy: 3 experts got no token");
  expect_has(line, "4 times the mean");
  expect_has(line, "50% of the assignments were dropped");
  expect_has(line, "sum to 1e-05");
}

TEST(MoeStats, R3_ForcedRoutingIsInTheLine) {
  MoeStats s = counts({1, 1});
  s.forced = true;
  expect_has(health_line(0, load_stats(s)), "FORCED ROUTING");
}

TEST(MoeStats, Q2_SaturatedGroupsAddUpAndAreInTheLine) {
  MoeStats s = counts({1, 1});
  EXPECT_EQ(load_stats(s).saturated, 0);
  s.saturated = at::full({1}, 2, at::kLong);
  s += s;
  expect_has(health_line(0, load_stats(s)), "4 groups of saved activations");
}

TEST(MoeStats, E1_NoTokensDivideNothing) {
  const LoadStats l = load_stats(counts({0, 0}));
  EXPECT_EQ(l.max_over_mean, 0);
  EXPECT_EQ(l.dropped_fraction(), 0);
  expect_has(health_line(0, l), "no tokens");
}

}  // namespace
}  // namespace troupe
