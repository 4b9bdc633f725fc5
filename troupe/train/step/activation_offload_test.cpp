// On a CPU, where copies are made at the call. What a GPU does is tests/troupe_gpu_test.py's.
#include "troupe/train/step/activation_offload.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "troupe/core/check.h"
#include "troupe/ops/support/sole_storages.h"

namespace troupe {
namespace {

constexpr size_t kLeastOffloaded = 64;
using Cell = ActivationOffload::Cell;

// x y y y, whose backward reads y twice, whole and by a view; nobody else has y.
struct OffloadedProduct {
  explicit OffloadedProduct(const at::Tensor& input) : x(input) {
    const at::NoGradGuard no_grad;
    const at::Tensor y = x.detach() + 1;
    bytes = static_cast<int64_t>(y.nbytes());
    result = x * y * y * y;
    const at::AutoGradMode with_grad(true);
    record({.name = "product",
            .inputs = {x},
            .outputs = {result},
            .saved = {y, y.view({-1}), y},
            .backward = [](const Gradients& g) -> TensorList {
              return {g.outputs[0] * g.saved[0] * g.saved[1].view_as(g.saved[2]) * g.saved[2]};
            }});
  }
  at::Tensor gradient() const {
    return torch::autograd::grad({result.sum()}, {x}, {}, /*retain_graph=*/true)[0];
  }
  at::Tensor x, result;
  int64_t bytes = 0;
};

at::Tensor leaf() {
  return at::randn({16, 8}, at::kFloat).requires_grad_();
}

TEST(ActivationOffload, WhatComesBackHasTheSameBits) {
  const OffloadedProduct product(leaf());
  const at::Tensor want = product.gradient();
  ActivationOffload offload(c10::kCPU, kLeastOffloaded);
  offload.send({1, 0}, {product.result});
  EXPECT_EQ(offload.waiting(), 1);
  EXPECT_EQ(offload.sent_bytes(), product.bytes);  // once, though it is saved three times
  offload.fetch({1, 0});
  EXPECT_EQ(offload.waiting(), 1);
  offload.need({1, 0});
  EXPECT_EQ(offload.waiting(), 0);
  EXPECT_TRUE(at::equal(product.gradient(), want));
}

TEST(ActivationOffload, CellsComeBackInAnyOrder) {
  ActivationOffload offload(c10::kCPU, kLeastOffloaded);
  const OffloadedProduct a(leaf()), b(leaf()), c(leaf());
  const at::Tensor of_a = a.gradient(), of_b = b.gradient(), of_c = c.gradient();
  offload.send({1, 0}, {a.result});
  offload.send({2, 0}, {b.result});
  offload.send({1, 1}, {c.result});
  offload.fetch({1, 1});
  offload.need({1, 0});  // never fetched
  EXPECT_TRUE(at::equal(a.gradient(), of_a));
  offload.need({1, 1});
  EXPECT_TRUE(at::equal(c.gradient(), of_c));
  offload.need({2, 0});
  EXPECT_TRUE(at::equal(b.gradient(), of_b));
  offload.need({2, 0});  // is back
  offload.fetch({7, 7});
  EXPECT_EQ(offload.waiting(), 0);
}

TEST(ActivationOffload, MemoryIsGivenBackInBetween) {
  const OffloadedProduct product(leaf());
  ActivationOffload offload(c10::kCPU, kLeastOffloaded);
  const auto storage = [&] {
    std::vector<c10::Storage> found = sole_storages({product.result}, kLeastOffloaded);
    return found.empty() ? c10::Storage() : found[0];
  };
  const c10::StorageImpl* const kept = storage().unsafeGetStorageImpl();
  ASSERT_NE(kept, nullptr);
  ASSERT_NE(kept->data(), nullptr);
  offload.send({1, 0}, {product.result});
  EXPECT_EQ(kept->data(), nullptr);
  offload.need({1, 0});
  EXPECT_NE(kept->data(), nullptr);
  EXPECT_EQ(storage().unsafeGetStorageImpl(), kept);
}

TEST(ActivationOffload, SmallTensorsStayAndNothingIsSentTwice) {
  const OffloadedProduct product(leaf());
  ActivationOffload usual(c10::kCPU);
  usual.send({1, 0}, {product.result});
  EXPECT_EQ(usual.waiting(), 0);
  ActivationOffload offload(c10::kCPU, kLeastOffloaded);
  offload.send({1, 0}, {product.result});
  EXPECT_THROW(offload.send({1, 0}, {product.result}), Error);
  offload.forget();
  EXPECT_EQ(offload.sent_bytes(), 0);
}

}  // namespace
}  // namespace troupe
