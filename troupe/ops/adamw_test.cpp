#include "troupe/ops/adamw.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>

#include "troupe/testing/torch/device.h"

namespace troupe {
namespace {

constexpr AdamWOptions kOptions{
    .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};

class AdamWOp : public testing::DeviceTest {};

TEST_P(AdamWOp, AgreesWithTheFormulaOverThreeSteps) {
  at::Tensor p = at::randn({7, 11}, device()), m = at::zeros_like(p), v = at::zeros_like(p);
  at::Tensor copy = p.to(at::kBFloat16), want = p.clone(), wm = m.clone(), wv = v.clone();
  const at::Tensor scale = at::full({1}, 0.5f, device());
  for (int64_t step = 1; step <= 3; ++step) {
    const at::Tensor grad = at::randn({7, 11}, device()), g = grad * 0.5;
    adamw_({p, m, v, copy}, grad, scale, step, kOptions);
    wm = 0.9 * wm + 0.1 * g;
    wv = 0.95 * wv + 0.05 * g * g;
    const auto t = static_cast<double>(step);
    const at::Tensor root = (wv / (1 - std::pow(0.95, t))).sqrt() + 1e-8;
    want = want - 0.01 * (wm / (1 - std::pow(0.9, t)) / root + 0.1 * want);
  }
  EXPECT_TRUE(at::allclose(p, want, 1e-5, 1e-6));
  EXPECT_TRUE(at::allclose(v, wv, 1e-5, 1e-7));
  EXPECT_TRUE(copy.equal(p.to(at::kBFloat16)));
}

TEST_P(AdamWOp, AGradientInHalfPrecisionServesAFloatParameter) {
  at::Tensor p = at::randn({33}, device()), m = at::zeros_like(p), v = at::zeros_like(p);
  at::Tensor q = p.clone(), qm = m.clone(), qv = v.clone();
  const at::Tensor grad = at::randn({33}, device().dtype(at::kBFloat16));
  adamw_({p, m, v}, grad, {}, 1, kOptions);
  adamw_({q, qm, qv}, grad.to(at::kFloat), {}, 1, kOptions);
  EXPECT_TRUE(p.equal(q));
}

// The formula of core/number/split_f32.h, in PyTorch's operators.
at::Tensor joined(const at::Tensor& value, const at::Tensor& low) {
  const at::Tensor upper = value.view(at::kShort).to(at::kLong) - low.lt(0).to(at::kLong);
  const at::Tensor bits =
      (upper.bitwise_and(0xffff) * 65536) + low.to(at::kLong).bitwise_and(0xffff);
  return bits.to(at::kInt).view(at::kFloat);
}

TEST_P(AdamWOp, AParameterInHalvesHasTheBitsOfAWholeOne) {
  const auto options = at::TensorOptions(device());
  at::Tensor value = at::randn({7, 11}, options.dtype(at::kBFloat16));
  const at::Tensor low = at::zeros({7, 11}, options.dtype(at::kShort));
  at::Tensor p = value.to(at::kFloat), copy = value.clone(), m = at::zeros_like(p),
             v = at::zeros_like(p), hm = m.clone(), hv = v.clone();
  for (int64_t step = 1; step <= 4; ++step) {
    const at::Tensor grad = at::randn({7, 11}, options.dtype(at::kBFloat16));
    adamw_({.param = p, .m = m, .v = v, .copy = copy}, grad, {}, step, kOptions);
    adamw_({.param = value, .m = hm, .v = hv, .remainder = low}, grad, {}, step, kOptions);
    EXPECT_TRUE(joined(value, low).equal(p)) << step;
    const at::Tensor tie = p.view(at::kInt).bitwise_and(0xffff).eq(0x8000);
    EXPECT_TRUE(value.eq(copy).logical_or(tie).all().item<bool>()) << step;
  }
  EXPECT_TRUE(hm.equal(m) && hv.equal(v));
}

// From nothing the first step uses the new moments before they are stored.
TEST_P(AdamWOp, MomentsInCodesTakeTheFirstStepOfWholeOnes) {
  const auto options = at::TensorOptions(device());
  at::Tensor p = at::randn({20, 30}, options), q = p.clone();
  at::Tensor m = at::zeros_like(p), v = at::zeros_like(p);
  const at::Tensor m8 = at::zeros({20, 30}, options.dtype(at::kByte)), v8 = m8.clone();
  const at::Tensor m_scale = at::zeros({3}, options), v_scale = m_scale.clone();
  const at::Tensor grad = at::randn({20, 30}, options);
  adamw_({.param = p, .m = m, .v = v}, grad, {}, 1, kOptions);
  adamw_({.param = q, .m = m8, .v = v8, .m_scale = m_scale, .v_scale = v_scale}, grad, {}, 1,
         kOptions);
  EXPECT_TRUE(q.equal(p));
  EXPECT_GE(m_scale.max().item<float>(), m.abs().max().item<float>());
  EXPECT_LT(m_scale.max().item<float>(), 2 * m.abs().max().item<float>());
  EXPECT_TRUE(v8.gt(0).all().item<bool>());
}

TEST_P(AdamWOp, ConstantsOnTheDeviceGiveTheSameBits) {
  at::Tensor p = at::randn({33}, device()), m = at::zeros_like(p), v = at::zeros_like(p);
  at::Tensor q = p.clone(), qm = m.clone(), qv = v.clone();
  for (int64_t step = 1; step <= 3; ++step) {
    const at::Tensor grad = at::randn({33}, device());
    adamw_({p, m, v}, grad, {}, step, kOptions);
    adamw_({q, qm, qv}, grad, {}, at::tensor(adamw_constants(step, kOptions)).to(p.device()));
  }
  EXPECT_TRUE(p.equal(q));
  EXPECT_TRUE(m.equal(qm));
  EXPECT_TRUE(v.equal(qv));
}

TEST_P(AdamWOp, ANanScaleLeavesEverythingAsItWas) {
  at::Tensor p = at::randn({9}, device()), m = at::zeros_like(p), v = at::zeros_like(p);
  const at::Tensor before = p.clone();
  adamw_({p, m, v}, at::full({9}, NAN, device()), at::full({1}, NAN, device()), 1, kOptions);
  EXPECT_TRUE(p.equal(before));
  EXPECT_TRUE(m.eq(0).all().item<bool>());
}

TEST_P(AdamWOp, E1_NoElements) {
  at::Tensor p = at::randn({0, 4}, device()), m = at::zeros_like(p), v = at::zeros_like(p);
  adamw_({p, m, v}, at::zeros_like(p), {}, 1, kOptions);
  EXPECT_EQ(p.numel(), 0);
}

INSTANTIATE_TEST_SUITE_P(On, AdamWOp, testing::devices(), testing::device_name);

TEST(AdamWRefusal, NamesTheArgument) {
  const at::Tensor p = at::ones({4, 6}), m = at::ones({4, 6}), v = at::ones({4, 6});
  TROUPE_EXPECT_REFUSAL(adamw_({p, m, v}, at::ones({4}), {}, 1, kOptions), "adamw_: grad");
  TROUPE_EXPECT_REFUSAL(adamw_({p, m.narrow(0, 0, 2), v}, p, {}, 1, kOptions), "adamw_: m");
  TROUPE_EXPECT_REFUSAL(adamw_({p.t(), m.t(), v.t()}, p.t(), {}, 1, kOptions), "adamw_: param");
  TROUPE_EXPECT_REFUSAL(adamw_({p, m, v}, p, at::ones({2}), 1, kOptions), "adamw_: grad_scale");
  TROUPE_EXPECT_REFUSAL(adamw_({p, m, v}, p, {}, 0, kOptions), "step");
  TROUPE_EXPECT_REFUSAL(adamw_constants(0, kOptions), "step");
  TROUPE_EXPECT_REFUSAL(adamw_({p, m, v}, p, {}, at::ones({8})), "constants");
  TROUPE_EXPECT_REFUSAL(adamw_({p.to(at::kBFloat16), m, v}, p, {}, 1, kOptions), "param");
  const at::Tensor value = p.to(at::kBFloat16), low = at::zeros({4, 6}, at::kShort);
  TROUPE_EXPECT_REFUSAL(adamw_({p, m, v, {}, low}, p, {}, 1, kOptions), "copy");
  TROUPE_EXPECT_REFUSAL(adamw_({p, m, v, value, low}, p, {}, 1, kOptions), "remainder");
  TROUPE_EXPECT_REFUSAL(adamw_({value, m, v, {}, p}, p, {}, 1, kOptions), "remainder");
  TROUPE_EXPECT_REFUSAL(adamw_({value, m, v, {}, low.t()}, p, {}, 1, kOptions), "remainder");
  const at::Tensor code = at::zeros({4, 6}, at::kByte), scale = at::zeros({1});
  TROUPE_EXPECT_REFUSAL(adamw_({p, code, code}, p, {}, 1, kOptions), "m_scale");
  TROUPE_EXPECT_REFUSAL(adamw_({p, m, v, {}, {}, scale, scale}, p, {}, 1, kOptions), "m_scale");
  TROUPE_EXPECT_REFUSAL(
      adamw_({p, code, code.clone(), {}, {}, scale, at::zeros({2})}, p, {}, 1, kOptions), "scales");
}

}  // namespace
}  // namespace troupe
