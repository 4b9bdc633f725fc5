#include "troupe/ops/grad_norm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <cmath>

#include "troupe/testing/torch/device.h"

namespace troupe {
namespace {

class GradNormOp : public testing::DeviceTest {};

TEST_P(GradNormOp, AgreesWithAtenOverTypesAndStrides) {
  const std::vector<at::Tensor> xs = {at::randn({300, 70}, device()).t(),
                                      at::randn({5}, device().dtype(at::kBFloat16)),
                                      at::randn({0, 3}, device()), at::randn({20000}, device())};
  double want = 0;
  for (const at::Tensor& x : xs) want += x.to(at::kDouble).pow(2).sum().item<double>();
  EXPECT_NEAR(sum_squares(xs).item<double>(), want, 1e-10 * want);
}

TEST_P(GradNormOp, F115_ClipsByTheNormOfAllPieces) {
  const at::Tensor a = at::full({5}, 2.0f, device()), b = at::full({4}, 5.0f, device());
  const auto [scale, norm] = clip_scale(sum_squares({a, b}), 1);
  EXPECT_FLOAT_EQ(norm.item<float>(), 10.954451f);
  EXPECT_FLOAT_EQ(scale.item<float>(), 1 / (10.954451f + 1e-6f));
}

TEST_P(GradNormOp, ANanMakesTheScaleNan) {
  const auto [scale, norm] = clip_scale(sum_squares({at::full({5}, NAN, device())}), 1);
  EXPECT_TRUE(std::isnan(scale.item<float>()));
}

INSTANTIATE_TEST_SUITE_P(On, GradNormOp, testing::devices(), testing::device_name);

TEST(GradNorm, OfNothingIsZero) {
  EXPECT_EQ(sum_squares({}).item<double>(), 0);
  EXPECT_EQ(sum_squares({at::randn({0})}).item<double>(), 0);
}

TEST(GradNormRefusal, NamesTheArgument) {
  TROUPE_EXPECT_REFUSAL(sum_squares({at::ones({4}, at::kInt)}), "sum_squares: x");
  TROUPE_EXPECT_REFUSAL(clip_scale(at::ones({1}), 1), "clip_scale: sum_squares");
  TROUPE_EXPECT_REFUSAL(clip_scale(at::ones({2}, at::kDouble), 1), "clip_scale: sum_squares");
  TROUPE_EXPECT_REFUSAL(clip_scale(at::ones({1}, at::kDouble), 0), "clip_scale: max_norm");
}

}  // namespace
}  // namespace troupe
