#include "troupe/ops/rotary.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using testing::Tensors;

RotaryTables tables(int64_t positions, int64_t pairs, const at::TensorOptions& options) {
  const at::Tensor wide = at::arange(positions, options).unsqueeze(1) *
                          at::pow(at::ones({}, options) * 100, -at::arange(pairs, options) / pairs);
  return {at::cos(wide), at::sin(wide)};
}

// Llama's formula, x [T, H, D].
at::Tensor llama(const at::Tensor& x, const RotaryTables& t) {
  const int64_t half = x.size(-1) / 2;
  const at::Tensor a = x.narrow(-1, 0, half), b = x.narrow(-1, half, half);
  const at::Tensor c = t.cos.narrow(0, 0, x.size(0)).unsqueeze(1),
                   s = t.sin.narrow(0, 0, x.size(0)).unsqueeze(1);
  return at::cat({a * c - b * s, b * c + a * s}, -1);
}

class RotaryOp : public testing::DeviceTest {};

TEST_P(RotaryOp, AgreesWithLlamasFormula) {
  const at::Tensor x = at::randn({7, 3, 8}, device());
  const RotaryTables t = tables(11, 4, device().dtype(at::kFloat));
  EXPECT_TRUE(at::allclose(rotary(x, t, {}, {}), llama(x, t), 1e-5, 1e-6));
}

TEST_P(RotaryOp, InterleavedIsHalfRotatedWithItsDimensionsDealtOut) {
  const at::Tensor x = at::randn({7, 3, 8}, device());
  const RotaryTables t = tables(11, 4, device().dtype(at::kFloat));
  const at::Tensor dealt = at::cat({x.slice(2, 0, 8, 2), x.slice(2, 1, 8, 2)}, -1);
  const at::Tensor want = llama(dealt, t);
  const at::Tensor got = rotary(x, t, {}, {.interleaved = true});
  EXPECT_TRUE(
      at::allclose(at::cat({got.slice(2, 0, 8, 2), got.slice(2, 1, 8, 2)}, -1), want, 1e-5, 1e-6));
}

TEST_P(RotaryOp, EachSequenceOfABatchBeginsAtZeroUnlessToldOtherwise) {
  const at::Tensor x = at::randn({2, 5, 3, 8}, device());
  const RotaryTables t = tables(11, 4, device().dtype(at::kFloat));
  const at::Tensor y = rotary(x, t, {}, {});
  EXPECT_TRUE(y[1].equal(rotary(x[1], t, {}, {})));
  const at::Tensor shifted = (at::arange(5, at::kLong) + 6).expand({2, 5}).to(x.device());
  const RotaryTables late = {t.cos.narrow(0, 6, 5), t.sin.narrow(0, 6, 5)};
  EXPECT_TRUE(rotary(x, t, shifted, {}).equal(rotary(x, late, {}, {})));
}

TEST_P(RotaryOp, TakesASliceOfAWiderProjection) {
  const at::Tensor qkv = at::randn({7, 40}, device());
  const at::Tensor q = qkv.narrow(1, 8, 16).view({7, 2, 8});
  const RotaryTables t = tables(7, 2, device().dtype(at::kFloat));
  const RotaryOptions o{.first = 3};
  EXPECT_TRUE(rotary(q, t, {}, o).equal(rotary(q.contiguous(), t, {}, o)));
  EXPECT_TRUE(rotary(q, t, {}, o).narrow(2, 0, 3).equal(q.narrow(2, 0, 3)));
}

TEST_P(RotaryOp, E1_NoTokens) {
  at::Tensor x = at::randn({0, 3, 8}, device()).requires_grad_();
  rotary(x, tables(4, 4, device().dtype(at::kFloat)), {}, {}).sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
}

INSTANTIATE_TEST_SUITE_P(On, RotaryOp, testing::devices(), testing::device_name);

TEST(RotaryGradient, AgreesWithTheNumericJacobian) {
  const RotaryTables t = tables(5, 2, at::kDouble);
  const at::Tensor position = at::tensor({4, 0, 2}, at::kLong);
  for (const bool interleaved : {false, true}) {
    const RotaryOptions o{.interleaved = interleaved, .first = 1};
    testing::expect_gradients([&](const Tensors& x) { return rotary(x[0], t, position, o); },
                              {at::randn({3, 2, 6}, at::kDouble).requires_grad_()});
  }
}

TEST(RotaryRefusal, NamesTheArgument) {
  const at::Tensor x = at::ones({7, 3, 8});
  const RotaryTables t = tables(11, 4, at::kFloat);
  TROUPE_EXPECT_REFUSAL(rotary(x[0], t, {}, {}), "rotary: x");
  TROUPE_EXPECT_REFUSAL(rotary(x, {t.cos.to(at::kDouble), t.sin}, {}, {}), "rotary: cos");
  TROUPE_EXPECT_REFUSAL(rotary(x, {t.cos, t.sin.narrow(0, 0, 8)}, {}, {}), "sin");
  TROUPE_EXPECT_REFUSAL(rotary(x, tables(6, 4, at::kFloat), {}, {}), "rotary: cos");
  TROUPE_EXPECT_REFUSAL(rotary(x, t, {}, {.first = 1}), "dimensions");
  TROUPE_EXPECT_REFUSAL(rotary(x, t, at::ones({6}, at::kLong), {}), "rotary: position");
  TROUPE_EXPECT_REFUSAL(rotary(x, t, at::ones({7}, at::kInt), {}), "rotary: position");
}

}  // namespace
}  // namespace troupe
