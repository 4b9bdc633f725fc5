#include "troupe/ops/moe_ffn/fp8_history.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/maximum.h>
#include <gtest/gtest.h>

#include <cmath>

#include "troupe/core/check.h"
#include "troupe/ops/moe_ffn/fp8_history_steps_test.h"

namespace troupe {
namespace {

at::Tensor at_hand(double x) {
  return at::tensor({x}, at::kFloat);
}

double made_of(Fp8History& h, Fp8Operand operand, double own, bool counts) {
  return h.largest(operand, at_hand(own), counts).item<double>();
}

TEST(Fp8History, Q8_21_AScaleIsOfTheLargestOfTheLastStepsAndMovesAtAStepsEnd) {
  HistoryInMemory h(tensor_of({{2, 5, 1}, {0, 0, 0}}));
  EXPECT_EQ(made_of(h, Fp8Operand::kIn, 9, true), 5);
  EXPECT_EQ(made_of(h, Fp8Operand::kIn, 3, true), 5);  // the step's largest stays 9
  EXPECT_EQ(made_of(h, Fp8Operand::kInGrad, 0.5, true), 0.5);
  EXPECT_EQ(made_of(h, Fp8Operand::kInGrad, 0.25, true), 0.25);
  EXPECT_EQ(made_of(h, Fp8Operand::kIn, 100, false), 5);
  Fp8History::end_of_step({&h});
  EXPECT_TRUE(at::equal(h.steps, tensor_of({{9, 2, 5}, {0.5, 0, 0}})));
  EXPECT_EQ(made_of(h, Fp8Operand::kInGrad, 7, false), 0.5);
  Fp8History::end_of_step({&h});  // nothing was seen
  EXPECT_TRUE(at::equal(h.steps, tensor_of({{9, 2, 5}, {0.5, 0, 0}})));
}

TEST(Fp8History, Q8_21_AStepThatWasNotFiniteOrIsDoneAgainIsForgotten) {
  HistoryInMemory h(tensor_of({{2, 1}, {3, 1}}));
  EXPECT_TRUE(std::isnan(made_of(h, Fp8Operand::kIn, NAN, true)));
  EXPECT_EQ(made_of(h, Fp8Operand::kIn, 3, true), 2);
  EXPECT_TRUE(std::isinf(made_of(h, Fp8Operand::kInGrad, INFINITY, true)));
  EXPECT_EQ(Fp8History::end_of_step({&h}).item<int64_t>(), 0);
  EXPECT_TRUE(at::equal(h.steps, tensor_of({{2, 1}, {3, 1}})));
  made_of(h, Fp8Operand::kIn, 50, true);
  h.forget();
  made_of(h, Fp8Operand::kIn, 1.5, true);
  Fp8History::end_of_step({&h});
  EXPECT_TRUE(at::equal(h.steps, tensor_of({{1.5, 2}, {3, 1}})));
}

// 2 has the scale 2^-7, which holds 3.5; 3.6 the scale 2^-6, which holds 7.
TEST(Fp8History, Q8_21_OperandsAboveTheirScalesLimitAreCounted) {
  HistoryInMemory a(tensor_of({{2}, {2}, {3.6}, {0}})), b(tensor_of({{1}, {1}}));
  made_of(a, Fp8Operand::kIn, 3.5, true);
  made_of(a, Fp8Operand::kInGrad, 3.51, true);
  made_of(a, Fp8Operand::kOut, 7, true);
  made_of(a, Fp8Operand::kOutGrad, 1e9, true);  // its scale is its own
  made_of(b, Fp8Operand::kIn, 1e9, true);
  EXPECT_EQ(Fp8History::end_of_step({&a, &b}).item<int64_t>(), 2);
}

// Other ranks have seen other values; one of them NaN.
TEST(Fp8History, Q8_21_EveryRankHasTheMaximumOfAll) {
  HistoryInMemory a(tensor_of({{2, 1}, {2, 1}})), b(tensor_of({{4, 4}, {4, 4}}));
  made_of(a, Fp8Operand::kIn, 1, true);
  made_of(b, Fp8Operand::kInGrad, 5, true);
  const at::Tensor others = at::tensor({3.0, 0.0, NAN, 2.0}, at::kFloat);
  Fp8History::end_of_step({&a, &b},
                          [&](const at::Tensor& own) { return at::maximum(own, others); });
  EXPECT_TRUE(at::equal(a.steps, tensor_of({{3, 2}, {2, 1}})));
  EXPECT_TRUE(at::equal(b.steps, tensor_of({{4, 4}, {5, 4}})));
}

TEST(Fp8History, RefusesOperandsThatItHasNot) {
  HistoryInMemory h(tensor_of({{2, 1}, {2, 1}}));
  TROUPE_EXPECT_REFUSAL(made_of(h, Fp8Operand::kOut, 1, true), "operand 2 of a history of 2");
  Fp8History unused;
  TROUPE_EXPECT_REFUSAL(made_of(unused, Fp8Operand::kIn, 1, true), "of a history of 0");
  TROUPE_EXPECT_REFUSAL(unused.use(at::Tensor()), "without memory");
}

}  // namespace
}  // namespace troupe
