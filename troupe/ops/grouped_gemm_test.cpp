#include "troupe/ops/grouped_gemm.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using testing::Tensors;

const std::vector<int> kOffsets = {0, 3, 3, 304};  // the second expert has no rows
constexpr int kRows = 307;                         // three rows belong to nobody

at::Tensor offsets(const at::TensorOptions& on = {}) {
  return at::tensor(kOffsets, at::kInt).to(on.device());
}

// An expert at a time, by ATen, in f32.
at::Tensor by_loop(const at::Tensor& x, const at::Tensor& w_ENK) {
  at::Tensor y = at::zeros({x.size(0), w_ENK.size(1)}, x.options().dtype(at::kFloat));
  for (int e = 0; e < 3; ++e) {
    const int64_t begin = kOffsets[e], rows = kOffsets[e + 1] - begin;
    y.narrow(0, begin, rows)
        .copy_(at::mm(x.narrow(0, begin, rows).to(at::kFloat), w_ENK[e].to(at::kFloat).t()));
  }
  return y;
}
at::Tensor outer_by_loop(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor g = at::zeros({3, a.size(1), b.size(1)}, a.options().dtype(at::kFloat));
  for (int e = 0; e < 3; ++e) {
    const int64_t begin = kOffsets[e], rows = kOffsets[e + 1] - begin;
    g[e].copy_(at::mm(a.narrow(0, begin, rows).to(at::kFloat).t(),
                      b.narrow(0, begin, rows).to(at::kFloat)));
  }
  return g;
}

bool near(const at::Tensor& got, const at::Tensor& want) {
  const bool half = got.scalar_type() != at::kFloat;
  return at::allclose(got.to(at::kFloat), want, half ? 1.6e-2 : 1e-5, half ? 2e-3 : 1e-4);
}

class GroupedGemmOp : public testing::DeviceTest {};

TEST_P(GroupedGemmOp, X7_EqualsALoopOverExperts) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor x = at::randn({kRows, 40}, device()).to(type);
    const at::Tensor w = at::randn({3, 24, 40}, device()).to(type);
    const at::Tensor want = by_loop(x, w), o = offsets(device());
    EXPECT_TRUE(near(grouped_gemm(x, w, o), want)) << type;
    const at::Tensor turned = w.transpose(1, 2);
    EXPECT_TRUE(near(grouped_gemm(x, turned, o, WeightOrder::kInOut), want)) << type;
    EXPECT_TRUE(near(grouped_gemm(x, turned.contiguous(), o, WeightOrder::kInOut), want)) << type;
  }
}

TEST_P(GroupedGemmOp, X7_GradientsEqualALoopOverExperts) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({kRows, 40}, device()).to(type).requires_grad_();
    const at::Tensor w = at::randn({3, 24, 40}, device()).to(type).requires_grad_();
    const at::Tensor grad = at::randn({kRows, 24}, device()).to(type), o = offsets(device());
    grouped_gemm(x, w, o).backward(grad);
    EXPECT_TRUE(near(x.grad(), by_loop(grad, w.detach().transpose(1, 2)))) << type;
    const at::Tensor want = outer_by_loop(grad, x.detach());
    EXPECT_TRUE(near(w.grad(), want)) << type;
    EXPECT_TRUE(w.grad()[1].eq(0).all().item<bool>()) << "E2: an expert without rows";
    EXPECT_TRUE(near(grouped_gemm_weight(grad, x.detach(), o), want)) << type;
  }
}

TEST_P(GroupedGemmOp, RowsPastTheLastExpertAreZero) {
  const at::Tensor x = at::ones({kRows, 8}, device()), w = at::ones({3, 8, 8}, device());
  const at::Tensor y = grouped_gemm(x, w, offsets(device()));
  EXPECT_TRUE(y.narrow(0, kRows - 3, 3).eq(0).all().item<bool>());
  EXPECT_TRUE(y.narrow(0, 0, kRows - 3).eq(8).all().item<bool>());
}

TEST_P(GroupedGemmOp, E1_NoRowsGiveNoRowsAndZeroGradients) {
  const at::Tensor x = at::randn({0, 8}, device());
  const at::Tensor w = at::randn({2, 5, 8}, device()).requires_grad_();
  const at::Tensor none = at::zeros({3}, device().dtype(at::kInt));
  const at::Tensor y = grouped_gemm(x, w, none);
  EXPECT_EQ(y.sizes(), (at::IntArrayRef{0, 5}));
  y.sum().backward();
  EXPECT_TRUE(w.grad().eq(0).all().item<bool>());
}

TEST_P(GroupedGemmOp, E16_TakesStridedInputs) {
  const at::Tensor x = at::randn({16, kRows}, device()).t();
  const at::Tensor w = at::randn({3, 8, 48}, device()).narrow(2, 5, 16);
  EXPECT_TRUE(near(grouped_gemm(x, w, offsets(device())), by_loop(x, w)));
}

// Widths for which a Hopper GPU has kernels of its own.
TEST_P(GroupedGemmOp, X7_WideGradientsInBf16EqualALoopOverExperts) {
  const auto bf16 = device().dtype(at::kBFloat16);
  const at::Tensor x = at::randn({kRows, 128}, bf16).requires_grad_();
  const at::Tensor w = at::randn({3, 192, 128}, bf16).mul_(0.1).requires_grad_();
  const at::Tensor grad = at::randn({kRows, 192}, bf16);
  const at::Tensor y = grouped_gemm(x, w, offsets(device()));
  y.backward(grad);
  const at::Tensor x_ = x.detach(), w_ = w.detach();
  EXPECT_TRUE(near(y, by_loop(x_, w_)));
  EXPECT_TRUE(near(x.grad(), by_loop(grad, w_.transpose(1, 2))));
  EXPECT_TRUE(near(w.grad(), outer_by_loop(grad, x_)));
}

INSTANTIATE_TEST_SUITE_P(On, GroupedGemmOp, testing::devices(), testing::device_name);

at::Tensor product_input(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble).requires_grad_();
}
at::Tensor few_offsets() {
  return at::tensor({0, 2, 2, 5}, at::kInt);
}

TEST(GroupedGemmGradient, AgreesWithTheNumericJacobian) {
  for (WeightOrder order : {WeightOrder::kOutIn, WeightOrder::kInOut}) {
    const bool out_in = order == WeightOrder::kOutIn;
    testing::expect_gradients(
        [&](const Tensors& x) { return grouped_gemm(x[0], x[1], few_offsets(), order); },
        {product_input({6, 4}), out_in ? product_input({3, 7, 4}) : product_input({3, 4, 7})});
  }
  testing::expect_gradients(
      [](const Tensors& x) { return grouped_gemm_weight(x[0], x[1], few_offsets()); },
      {product_input({6, 4}), product_input({6, 3})});
}

TEST(GroupedGemmGradient, X8_FrozenPartsHaveNone) {
  const at::Tensor x = at::randn({6, 4}), w = at::randn({3, 7, 4});
  const at::Tensor free_x = x.detach().clone().requires_grad_();
  const at::Tensor free_w = w.detach().clone().requires_grad_();
  grouped_gemm(free_x, free_w, few_offsets()).sum().backward();
  const at::Tensor only_x = x.detach().clone().requires_grad_();
  grouped_gemm(only_x, w, few_offsets()).sum().backward();
  const at::Tensor only_w = w.detach().clone().requires_grad_();
  grouped_gemm(x, only_w, few_offsets()).sum().backward();
  EXPECT_TRUE(only_x.grad().equal(free_x.grad()));
  EXPECT_TRUE(only_w.grad().equal(free_w.grad()));
  EXPECT_FALSE(grouped_gemm(x, w, few_offsets()).requires_grad());
}

TEST(GroupedGemmRefusal, NamesTheArgument) {
  const at::Tensor x = at::ones({5, 4}), w = at::ones({3, 7, 4}), o = few_offsets();
  TROUPE_EXPECT_REFUSAL(grouped_gemm(x[0], w, o), "grouped_gemm: x");
  TROUPE_EXPECT_REFUSAL(grouped_gemm(x, w[0], o), "grouped_gemm: w");
  TROUPE_EXPECT_REFUSAL(grouped_gemm(x, w, o, WeightOrder::kInOut), "grouped_gemm: w");
  TROUPE_EXPECT_REFUSAL(grouped_gemm(x, at::ones({2, 7, 4}), o), "grouped_gemm: w");
  TROUPE_EXPECT_REFUSAL(grouped_gemm(x, w.to(at::kDouble), o), "grouped_gemm: w");
  TROUPE_EXPECT_REFUSAL(grouped_gemm(x.to(at::kHalf), w, o), "grouped_gemm: w");
  TROUPE_EXPECT_REFUSAL(grouped_gemm(x, w, o.to(at::kLong)), "grouped_gemm: expert_offset");
  TROUPE_EXPECT_REFUSAL(grouped_gemm(x, w, o.narrow(0, 0, 1)), "grouped_gemm: expert_offset");
  TROUPE_EXPECT_REFUSAL(grouped_gemm(at::ones({4, 4}), w, o), "expert_offset");
  TROUPE_EXPECT_REFUSAL(grouped_gemm(x.to(at::kInt), w.to(at::kInt), o), "grouped_gemm: x");
  TROUPE_EXPECT_REFUSAL(grouped_gemm_weight(x, at::ones({4, 4}), o), "grouped_gemm_weight: b");
  TROUPE_EXPECT_REFUSAL(grouped_gemm_weight(x, x.to(at::kDouble), o), "grouped_gemm_weight: b");
  TROUPE_EXPECT_REFUSAL(grouped_gemm_weight(x[0], x, o), "grouped_gemm_weight: a");
}

}  // namespace
}  // namespace troupe
