#include "troupe/ops/combine.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "troupe/ops/routing_plan.h"
#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"
#include "troupe/testing/torch/plan.h"

namespace troupe {
namespace {

using testing::Tensors;

constexpr int64_t kTokens = 33, kChoices = 3, kWidth = 40;

Plan plan_on(const at::Device& device, int64_t T = kTokens, int64_t alignment = 1) {
  at::Tensor ids = testing::random_ids(T, kChoices, 7, 3);
  if (T > 2) ids[1].fill_(-1), ids[2][0] = -1;  // A token with no row, and one with two.
  return routing_plan(ids.to(device), {.experts = 7, .alignment = alignment});
}

// Slot by slot in ATen, in double.
at::Tensor by_indexing(const at::Tensor& y, const Plan& plan, const at::Tensor& w) {
  at::Tensor out = at::zeros({plan.slot_row.size(0), y.size(1)}, y.options().dtype(at::kDouble));
  for (int64_t k = 0; k < plan.slot_row.size(1); ++k) {
    const at::Tensor row = plan.slot_row.select(1, k).to(at::kLong);
    const at::Tensor scale = w.select(1, k).to(at::kDouble).masked_fill(row.lt(0), 0);
    out += y.to(at::kDouble).index_select(0, row.clamp_min(0)) * scale.unsqueeze(1);
  }
  return out;
}

class CombineOpTest : public testing::DeviceTest {};

TEST_P(CombineOpTest, P2_IsTheSumOverSlotsRoundedOnce) {
  for (int64_t alignment : {1, 16}) {
    const Plan plan = plan_on(device(), kTokens, alignment);
    const at::Tensor w = at::rand({kTokens, kChoices}, options());
    const at::Tensor addend = at::randn({kTokens, kWidth}, options());
    for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const at::Tensor y = at::randn({plan.row_src.size(0), kWidth}, options()).to(type);
      const at::Tensor want = by_indexing(y, plan, w);
      const double place = type == at::kFloat ? 1e-6 : type == at::kHalf ? 1e-3 : 8e-3;
      EXPECT_TRUE(combine(y, plan, w).to(at::kDouble).allclose(want, place, 1e-5)) << type;
      const at::Tensor more = combine(y, plan, w, addend).to(at::kDouble);
      EXPECT_TRUE(more.allclose(want + addend, place, 1e-5)) << type;
    }
  }
}

TEST_P(CombineOpTest, C5_TokensWithoutRowsAreExactlyZero) {
  const Plan plan = plan_on(device());
  const at::Tensor y = at::randn({plan.row_src.size(0), kWidth}, options());
  EXPECT_EQ(combine(y, plan)[1].abs().max().item<double>(), 0);
}

TEST_P(CombineOpTest, E16_AnyStrides) {
  const Plan plan = plan_on(device());
  const at::Tensor y = at::randn({kWidth, plan.row_src.size(0)}, options()).t();
  EXPECT_TRUE(combine(y, plan).equal(combine(y.contiguous(), plan)));
}

TEST_P(CombineOpTest, E1_NoTokens) {
  const Plan plan = plan_on(device(), 0);
  const at::Tensor y = at::randn({0, kWidth}, options()).requires_grad_();
  const at::Tensor out = combine(y, plan);
  EXPECT_EQ(out.sizes(), at::IntArrayRef({0, kWidth}));
  out.sum().backward();
  EXPECT_EQ(y.grad().sizes(), y.sizes());
}

TEST_P(CombineOpTest, X8_FrozenInputsGetNoGradient) {
  const Plan plan = plan_on(device());
  const at::Tensor y = at::randn({plan.row_src.size(0), kWidth}, options());
  const at::Tensor w = at::rand({kTokens, kChoices}, options());
  const at::Tensor all_y = y.clone().requires_grad_(), all_w = w.clone().requires_grad_();
  combine(all_y, plan, all_w).square().sum().backward();
  const at::Tensor only_y = y.clone().requires_grad_(), only_w = w.clone().requires_grad_();
  combine(only_y, plan, w).square().sum().backward();
  combine(y, plan, only_w).square().sum().backward();
  EXPECT_TRUE(only_y.grad().equal(all_y.grad()));
  EXPECT_TRUE(only_w.grad().equal(all_w.grad()));
}

// Masked slots: their weights move nothing.
TEST_P(CombineOpTest, C5_GradientsOfDroppedWeightsAreExactlyZero) {
  const Plan plan = plan_on(device());
  const at::Tensor y = at::randn({plan.row_src.size(0), kWidth}, options());
  const at::Tensor w = at::rand({kTokens, kChoices}, options()).requires_grad_();
  combine(y, plan, w).sum().backward();
  EXPECT_EQ(w.grad()[1].abs().max().item<double>(), 0);
  EXPECT_EQ(w.grad()[2][0].item<double>(), 0);
  EXPECT_NE(w.grad()[2][1].item<double>(), 0);
}
TROUPE_ON_DEVICES(CombineOpTest);

TEST(CombineOp, AgreesWithTheNumericJacobian) {
  for (int64_t alignment : {1, 2}) {
    const Plan plan = plan_on(at::kCPU, 5, alignment);
    const auto y = at::randn({plan.row_src.size(0), 2}, at::kDouble).requires_grad_();
    const auto w = at::randn({5, kChoices}, at::kDouble).requires_grad_();
    const auto a = at::randn({5, 2}, at::kDouble).requires_grad_();
    testing::expect_gradients([&](const Tensors& in) { return combine(in[0], plan); }, {y});
    testing::expect_gradients([&](const Tensors& in) { return combine(in[0], plan, in[1], in[2]); },
                              {y, w, a});
  }
}

TEST(CombineOp, RefusalsNameTheArgument) {
  const Plan plan = plan_on(at::kCPU);
  const at::Tensor y = at::randn({plan.row_src.size(0), kWidth});
  const at::Tensor w = at::rand({kTokens, kChoices}), a = at::rand({kTokens, kWidth});
  const auto says = [&](const at::Tensor& in, const at::Tensor& weights, const at::Tensor& addend,
                        const char* what) {
    return testing::refusal([&] { combine(in, plan, weights, addend); }).find(what) !=
           std::string::npos;
  };
  EXPECT_TRUE(says(at::randn({3, kWidth}), w, a, "combine: y"));
  EXPECT_TRUE(says(y, at::rand({kTokens, 2}), a, "combine: weights"));
  EXPECT_TRUE(says(y, w.to(at::kHalf), a, "combine: weights"));
  EXPECT_TRUE(says(y, w, at::rand({kTokens, 2}), "combine: addend"));
  EXPECT_TRUE(says(y, w, a.to(at::kHalf), "combine: addend"));
}

}  // namespace
}  // namespace troupe
