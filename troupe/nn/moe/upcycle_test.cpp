#include "troupe/nn/moe/upcycle.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "troupe/core/check.h"
#include "troupe/nn/moe/experts.h"
#include "troupe/nn/moe/routers/select.h"
#include "troupe/testing/torch/plan.h"

namespace troupe {
namespace {

constexpr int64_t kD = 6, kT = 20;

DenseWeights dense_of(int64_t hidden, bool gated, bool bias = false) {
  const int64_t rows = gated ? 2 * hidden : hidden;
  DenseWeights d{.w1 = at::randn({rows, kD}, at::kDouble),
                 .b1 = std::nullopt,
                 .w2 = at::randn({kD, hidden}, at::kDouble),
                 .b2 = std::nullopt};
  if (bias) d.b1 = at::randn({rows}, at::kDouble), d.b2 = at::randn({kD}, at::kDouble);
  return d;
}

at::Tensor one_expert(const at::Tensor& x, const DenseWeights& d, const FfnOptions& o) {
  const at::Tensor zero = at::zeros({x.size(0), 1}, at::kInt);
  ExpertWeights w{d.w1.unsqueeze(0), std::nullopt, d.w2.unsqueeze(0), std::nullopt};
  if (d.b1) w.b1 = d.b1->unsqueeze(0), w.b2 = d.b2->unsqueeze(0);
  return loop_ffn(
      {.source_SD = x, .scores_SK = zero.to(at::kDouble) + 1, .plan = testing::plan_of(zero, 1)}, w,
      o);
}

// Largest difference of the upcycled layer and the dense one, over the dense one's largest output.
double error(const Upcycle& u, int64_t hidden, bool bias = false) {
  const DenseWeights dense = dense_of(hidden, u.gated, bias);
  const at::Tensor x = at::randn({kT, kD}, at::kDouble);
  FfnOptions o;
  o.activation = u.activation;
  const at::Tensor drawn = at::randn({u.experts / slices(u, hidden), kD}, at::kDouble);
  const at::Tensor z = at::matmul(x, upcycle_router(drawn, u, hidden).t());
  const RouterOutput r = select(
      z, {},
      {.top_k = u.top_k,
       .weighting = u.weights_sum_to_one ? RouterWeighting::kChosen : RouterWeighting::kRaw});
  const at::Tensor y = loop_ffn(
      {.source_SD = x, .scores_SK = r.weights_TK, .plan = testing::plan_of(r.ids_TK, u.experts)},
      upcycle(dense, u), o);
  const at::Tensor want = one_expert(x, dense, o);
  return ((y - want).abs().max() / want.abs().max()).item<double>();
}

TEST(Upcycle, U3_CopiesOfASiluGluAreExact) {
  const Upcycle u{.experts = 4, .hidden = 12, .top_k = 2};
  EXPECT_TRUE(is_exact(u, 12));
  EXPECT_LT(error(u, 12), 1e-12);
  EXPECT_LT(error(u, 12, /*bias=*/true), 1e-12);
}

TEST(Upcycle, U3_SlicesOfReluSquaredAreExact) {
  for (const int64_t k : {2, 4}) {
    const Upcycle u{.experts = 8, .hidden = 6, .top_k = k, .activation = "relu2", .gated = false};
    EXPECT_TRUE(is_exact(u, 12));
    EXPECT_LT(error(u, 12), 1e-12) << k;
  }
}

TEST(Upcycle, U2_SlicesOfAReluGluWithBiasesAreExact) {
  const Upcycle u{.experts = 6, .hidden = 4, .top_k = 3, .activation = "relu"};
  EXPECT_LT(error(u, 12, /*bias=*/true), 1e-12);
  const Upcycle mlp{.experts = 6, .hidden = 4, .top_k = 3, .activation = "relu", .gated = false};
  EXPECT_LT(error(mlp, 12, /*bias=*/true), 1e-12);
}

TEST(Upcycle, U3_SlicesOfASiluGluAreOnlyNear) {
  const Upcycle u{.experts = 6, .hidden = 4, .top_k = 3};
  EXPECT_FALSE(is_exact(u, 12));
  const double e = error(u, 12);
  EXPECT_GT(e, 1e-3);
  EXPECT_LT(e, 0.5);
}

TEST(Upcycle, U1_ExpertHasItsSliceOfBothHalvesAndOfTheColumns) {
  const DenseWeights d = dense_of(6, true);
  const Upcycle u{.experts = 6, .hidden = 2, .top_k = 3, .activation = "relu"};
  const ExpertWeights w = upcycle(d, u);
  const double s = weight_scale(u, 6);
  EXPECT_DOUBLE_EQ(s, std::cbrt(3.0));
  const int64_t e = 1 * 3 + 2;  // copy 1, slice 2
  EXPECT_TRUE(w.w1[e].narrow(0, 0, 2).equal(d.w1.narrow(0, 4, 2) * s));
  EXPECT_TRUE(w.w1[e].narrow(0, 2, 2).equal(d.w1.narrow(0, 6 + 4, 2) * s));
  EXPECT_TRUE(w.w2[e].equal(d.w2.narrow(1, 4, 2) * s));
}

TEST(Upcycle, U2_TheScaleFollowsTheDegreeAndTheWeights) {
  Upcycle u{.experts = 8, .hidden = 3, .top_k = 2};
  EXPECT_DOUBLE_EQ(weight_scale(u, 6), std::cbrt(2.0));
  u.gated = false;
  EXPECT_DOUBLE_EQ(weight_scale(u, 6), std::sqrt(2.0));
  u.activation = "relu2";
  EXPECT_DOUBLE_EQ(weight_scale(u, 6), std::cbrt(2.0));
  u.weights_sum_to_one = false;
  EXPECT_DOUBLE_EQ(weight_scale(u, 6), std::cbrt(4 * 4 / 2.0));  // q g^2 / k
}

TEST(Upcycle, U3_RefusesKThatIsNoMultipleOfTheSlices) {
  Upcycle u{.experts = 4, .hidden = 6, .top_k = 3};
  EXPECT_THROW(slices(u, 12), Error);
  u.allow_inexact = true;
  EXPECT_EQ(slices(u, 12), 2);
  EXPECT_FALSE(is_exact(u, 12));
}

TEST(Upcycle, U1_RefusesWidthsAndExpertsThatDoNotDivide) {
  EXPECT_THROW(slices({.experts = 4, .hidden = 5}, 12), Error);
  EXPECT_THROW(slices({.experts = 3, .hidden = 6, .top_k = 2}, 12), Error);
  EXPECT_THROW(upcycle_router(at::randn({3, kD}), {.experts = 4, .hidden = 6, .top_k = 2}, 12),
               Error);
}

}  // namespace
}  // namespace troupe
