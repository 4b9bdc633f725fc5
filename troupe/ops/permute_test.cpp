#include "troupe/ops/permute.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "troupe/ops/combine.h"
#include "troupe/ops/routing_plan.h"
#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"
#include "troupe/testing/torch/plan.h"

namespace troupe {
namespace {

using testing::Tensors;

Plan plan_on(const at::Device& device, int64_t T, int64_t alignment = 1) {
  return routing_plan(testing::random_ids(T, 2, 5, 3).to(device),
                      {.experts = 5, .alignment = alignment});
}

// x[row_src], zeros where row_src is -1.
at::Tensor by_indexing(const at::Tensor& x, const Plan& plan) {
  const at::Tensor src = plan.row_src.to(at::kLong);
  return x.index_select(0, src.clamp_min(0)).masked_fill(src.lt(0).unsqueeze(1), 0);
}

class PermuteOpTest : public testing::DeviceTest {};

TEST_P(PermuteOpTest, P3_IsIndexingWithZerosInPads) {
  for (int64_t alignment : {1, 16}) {
    const Plan plan = plan_on(device(), 33, alignment);
    for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (int64_t D : {1, 24, 130}) {
        const at::Tensor x = at::randn({33, D}, options()).to(type);
        EXPECT_TRUE(permute(x, plan).equal(by_indexing(x, plan))) << type << " " << D;
      }
    }
  }
}

TEST_P(PermuteOpTest, P1_CombineOfPermuteIsTheTokenTimesItsWeights) {
  const Plan plan = plan_on(device(), 33, 16);
  const at::Tensor x = at::randn({33, 24}, options()), w = at::rand({33, 2}, options());
  const at::Tensor want = x * w.sum(1, true);
  EXPECT_TRUE(combine(permute(x, plan), plan, w).allclose(want, 1e-5, 1e-6));
  EXPECT_TRUE(combine(permute(x, plan, w), plan).allclose(want, 1e-5, 1e-6));
  EXPECT_TRUE(combine(permute(x, plan), plan).equal(x * 2));
}

TEST_P(PermuteOpTest, E16_AnyStrides) {
  const Plan plan = plan_on(device(), 33);
  const at::Tensor turned = at::randn({24, 33}, options()).t();
  EXPECT_TRUE(permute(turned, plan).equal(permute(turned.contiguous(), plan)));
  const at::Tensor wide = at::randn({1, 24}, options()).expand({33, 24});
  EXPECT_TRUE(permute(wide, plan).equal(permute(wide.contiguous(), plan)));
}

TEST_P(PermuteOpTest, E1_NoTokens) {
  const Plan plan = plan_on(device(), 0);
  const at::Tensor x = at::randn({0, 24}, options()).requires_grad_();
  const at::Tensor w = at::rand({0, 2}, options()).requires_grad_();
  const at::Tensor y = permute(x, plan, w);
  EXPECT_EQ(y.sizes(), at::IntArrayRef({0, 24}));
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_EQ(w.grad().sizes(), w.sizes());
}

TEST_P(PermuteOpTest, X8_FrozenInputsGetNoGradient) {
  const Plan plan = plan_on(device(), 33);
  const at::Tensor x = at::randn({33, 24}, options()), w = at::rand({33, 2}, options());
  const at::Tensor all_x = x.clone().requires_grad_(), all_w = w.clone().requires_grad_();
  permute(all_x, plan, all_w).square().sum().backward();
  const at::Tensor only_x = x.clone().requires_grad_(), only_w = w.clone().requires_grad_();
  permute(only_x, plan, w).square().sum().backward();
  permute(x, plan, only_w).square().sum().backward();
  EXPECT_TRUE(only_x.grad().equal(all_x.grad()));
  EXPECT_TRUE(only_w.grad().equal(all_w.grad()));
  EXPECT_FALSE(x.grad().defined() || w.grad().defined());
}
TROUPE_ON_DEVICES(PermuteOpTest);

TEST(PermuteOp, AgreesWithTheNumericJacobian) {
  for (int64_t alignment : {1, 4}) {
    const Plan plan = plan_on(at::kCPU, 5, alignment);
    const auto x = at::randn({5, 3}, at::kDouble).requires_grad_();
    const auto w = at::randn({5, 2}, at::kDouble).requires_grad_();
    testing::expect_gradients([&](const Tensors& in) { return permute(in[0], plan); }, {x});
    testing::expect_gradients([&](const Tensors& in) { return permute(in[0], plan, in[1]); },
                              {x, w});
  }
}

TEST(PermuteOp, TracesWithoutData) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const Plan plan = routing_plan(at::empty({10, 2}, meta.dtype(at::kInt)), {.experts = 4});
  const at::Tensor y = permute(at::empty({10, 8}, meta.dtype(at::kBFloat16)), plan);
  EXPECT_TRUE(y.is_meta());
  EXPECT_EQ(y.sizes(), at::IntArrayRef({20, 8}));
}

TEST(PermuteOp, RefusalsNameTheArgument) {
  const Plan plan = plan_on(at::kCPU, 5);
  const at::Tensor x = at::randn({5, 3}), w = at::rand({5, 2});
  const auto says = [&](const at::Tensor& a, const at::Tensor& b, const char* what) {
    return testing::refusal([&] { permute(a, plan, b); }).find(what) != std::string::npos;
  };
  EXPECT_TRUE(says(at::randn({6, 3}), w, "permute: x"));
  EXPECT_TRUE(says(x.to(at::kLong), w, "permute: x"));
  EXPECT_TRUE(says(x, at::rand({5, 3}), "permute: weights"));
  EXPECT_TRUE(says(x, w.to(at::kBFloat16), "permute: weights"));
  EXPECT_TRUE(says(x.to(at::kDouble), w, "permute: weights"));
}

}  // namespace
}  // namespace troupe
