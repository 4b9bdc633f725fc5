#include "troupe/core/training_cost.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

TEST(TrainingCost, N3_UtilizationIsModelOperationsByTimeAndPeak) {
  const Utilization u{.model_flops = 8 * 989.5e12,
                      .seconds = 4,
                      .ranks = 4,
                      .routed_rows = 65536,
                      .max_over_mean = 1.25};
  EXPECT_DOUBLE_EQ(u.mfu(), 0.5);
  EXPECT_DOUBLE_EQ(u.flops_per_rank(), 494.75e12);
  EXPECT_EQ(utilization_line(u),
            "MFU 50% of 989.5 TFLOP/s (494.8 a rank), 65536 routed rows, max/mean 1.25, "
            "learned routing");
}

TEST(TrainingCost, N3_R3_ForcedRoutingIsInTheLine) {
  Utilization u{.model_flops = 1e12, .seconds = 1, .peak = 1e13};
  u.forced = true;
  EXPECT_NE(utilization_line(u).find("FORCED ROUTING"), std::string::npos);
  EXPECT_EQ(utilization_line(u).find("learned"), std::string::npos);
}

TEST(TrainingCost, N2_TrainingIsThreeTimesForward) {
  EXPECT_EQ(training_flops(7), 21);
}

TEST(TrainingCost, N4_BytesAParameter) {
  using enum TrainingPrecision;
  EXPECT_EQ(state_bytes(kBf16).per_parameter(), 16);
  EXPECT_EQ(state_bytes(kF16).per_parameter(), 20);
  EXPECT_EQ(state_bytes(kF32).per_parameter(), 16);
  EXPECT_EQ(state_bytes(kBf16).per_parameter(8), 6 + 10.0 / 8);
  EXPECT_EQ(state_bytes(kF16).per_parameter(4), 4 + 16.0 / 4);
  EXPECT_EQ(state_bytes(kF32).per_parameter(2), 8 + 8.0 / 2);
}

// Mixtral 8x7B's parameters in bf16 on 64 GPUs, by three layouts.
TEST(TrainingCost, N4_ThreeLayouts) {
  const int64_t experts = int64_t{32} * 8 * 3 * 4096 * 14336;
  const int64_t dense = 46'702'792'704 - experts;
  const auto gb = [](const RankParameters& r) {
    return state_bytes_of(TrainingPrecision::kBf16, r) * 1e-9;
  };
  const double D = static_cast<double>(dense), X = static_cast<double>(experts);
  // Everything on each rank, nothing cut.
  EXPECT_DOUBLE_EQ(gb({.dense = dense, .experts = experts}), 46.702792704 * 16);
  // EP 8: an eighth of the experts here, held by 64 / 8 ranks; dense state cut by all 64.
  EXPECT_NEAR(gb({.dense = dense, .experts = experts / 8, .dense_cuts = 64, .expert_cuts = 8}),
              (D * (6 + 10.0 / 64) + X / 8 * (6 + 10.0 / 8)) * 1e-9, 1e-9);
  // PP 4, EP 8, DP 16: a quarter of all layers; EDP 2.
  EXPECT_NEAR(gb({.dense = dense / 4, .experts = experts / 32, .dense_cuts = 16, .expert_cuts = 2}),
              (D / 4 * (6 + 10.0 / 16) + X / 32 * (6 + 10.0 / 2)) * 1e-9, 1e-6);
}

}  // namespace
}  // namespace troupe
