#include "troupe/ops/support/sole_storages.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace troupe {
namespace {

constexpr size_t kBytes = size_t{4} * 4 * 4;  // of the tensors below

// 2 x, with a node of ours that saves what is given.
at::Tensor doubled_saving(const at::Tensor& x, const TensorList& saved) {
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    y = x * 2;
  }
  record({.name = "doubled",
          .inputs = {x},
          .outputs = {y},
          .saved = saved,
          .backward = [](const Gradients& g) -> TensorList { return {g.outputs[0] * 2}; }});
  return y;
}

at::Tensor matrix() {
  return at::randn({4, 4}, at::kFloat);
}

bool has(const std::vector<c10::Storage>& storages, const void* data) {
  return std::ranges::any_of(storages, [&](const auto& s) { return s.data() == data; });
}

TEST(SoleStorages, AreWhatTheGraphAloneHolds) {
  const at::Tensor x = matrix().requires_grad_();
  at::Tensor own = matrix();
  const at::Tensor ours = matrix();
  const void* data = own.const_data_ptr();
  const at::Tensor y = doubled_saving(x, {x, own, ours});
  EXPECT_FALSE(has(sole_storages({y}, kBytes), data));  // `own` is held here
  own.reset();
  const std::vector<c10::Storage> found = sole_storages({y}, kBytes);
  ASSERT_EQ(found.size(), 1U);  // neither x nor `ours`
  EXPECT_EQ(found[0].data(), data);
  EXPECT_TRUE(sole_storages({y}, kBytes + 1).empty());
}

TEST(SoleStorages, AreSharedByViewsAndNodes) {
  const at::Tensor x = matrix().requires_grad_();
  at::Tensor base = matrix();
  const void* data = base.const_data_ptr();
  at::Tensor y = doubled_saving(x, {base, base});
  y = doubled_saving(y, {base.narrow(0, 1, 2)});
  at::Tensor view = base.t();
  y = doubled_saving(y, {view});
  base.reset();
  EXPECT_TRUE(sole_storages({y}, kBytes).empty());  // `view` is held here
  view.reset();
  const std::vector<c10::Storage> found = sole_storages({y}, kBytes);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].data(), data);
}

// A differentiable view holds its base, and a product of PyTorch's saves the view.
TEST(SoleStorages, OutputsThatProductsReadAsViewsAreThere) {
  const at::Tensor x = matrix().requires_grad_(), w = matrix().requires_grad_();
  at::Tensor middle;
  {
    const at::NoGradGuard no_grad;
    middle = x * 2;
  }
  record({.name = "doubled",
          .inputs = {x},
          .outputs = {middle},
          .saved = {middle},
          .backward = [](const Gradients& g) -> TensorList { return {g.outputs[0] * 2}; }});
  const void* data = middle.const_data_ptr();
  const at::Tensor y = at::mm(middle.view({2, 8}).view({4, 4}), w);
  EXPECT_TRUE(sole_storages({y}, kBytes).empty());  // `middle` is held here
  middle.reset();
  const std::vector<c10::Storage> found = sole_storages({y}, kBytes);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].data(), data);
}

}  // namespace
}  // namespace troupe
