#include "troupe/ops/support/autograd.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "troupe/core/check.h"
#include "troupe/ops/support/torch_versions/graph_node.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

// y = x * w (elementwise), with the given derivative, so that a wrong one can be planted.
at::Tensor product(const at::Tensor& x, const at::Tensor& w, double factor = 1) {
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    y = x * w;
  }
  record({.name = "product",
          .inputs = {x, w},
          .outputs = {y},
          .saved = {x, w},
          .backward = [factor](const Gradients& g) -> TensorList {
            return {g.needs[0] ? g.outputs[0] * g.saved[1] * factor : at::Tensor(),
                    g.needs[1] ? g.outputs[0] * g.saved[0] : at::Tensor()};
          }});
  return y;
}

at::Tensor input() {
  return at::randn({3, 2}, at::kDouble).requires_grad_();
}

TEST(Autograd, AgreesWithTheNumericJacobian) {
  testing::expect_gradients([](const TensorList& x) { return product(x[0], x[1]); },
                            {input(), input()});
}

TEST(Autograd, TheNumericJacobianFindsAWrongDerivative) {
  EXPECT_GT(testing::gradient_error([](const TensorList& x) { return product(x[0], x[1], 1.001); },
                                    {input(), input()}),
            1e-4);
}

TEST(Autograd, RecordsNothingWithoutNeed) {
  EXPECT_FALSE(product(at::ones({2}), at::ones({2})).requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(product(input(), input()).requires_grad());
}

TEST(Autograd, ComputesOnlyTheGradientsThatAreWanted) {
  const at::Tensor x = input(), w = at::randn({3, 2}, at::kDouble);
  product(x, w).sum().backward();
  EXPECT_TRUE(x.grad().equal(w));
  EXPECT_FALSE(w.grad().defined());
}

// Who only watches a graph, as fully_shard does, keeps none of its memory (torch_versions/graph_node.h).
TEST(Autograd, ANodeThatIsOnlyWatchedHoldsNoTensors) {
  const at::Tensor x = input();
  at::Tensor y = at::zeros({3, 2}, at::kDouble), saved = at::ones({3, 2}, at::kDouble),
             captured = at::ones({3, 2}, at::kDouble);
  record({.name = "watched",
          .inputs = {x},
          .outputs = {y},
          .saved = {saved},
          .backward = [captured](const Gradients& g) -> TensorList {
            return {g.outputs[0] * g.saved[0] * captured};
          }});
  const WeakNode watched(y.grad_fn());
  const auto saved_memory = saved.storage().getWeakStorageImpl(),
             captured_memory = captured.storage().getWeakStorageImpl();
  saved.reset();
  captured.reset();
  EXPECT_FALSE(watched.expired() || saved_memory.expired() || captured_memory.expired());
  y.reset();
  EXPECT_TRUE(watched.expired() && saved_memory.expired() && captured_memory.expired());
}

TEST(Autograd, RefusesASecondDerivative) {
  const at::Tensor x = input();
  product(x, x).sum().backward({}, /*retain_graph=*/true, /*create_graph=*/true);
  EXPECT_THROW(x.grad().sum().backward(), std::exception);
}

// y = 2 x, which is made again rather than kept; `made` counts how often.
at::Tensor doubled(const at::Tensor& x, int* made) {
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    y = x * 2;
  }
  record({.name = "doubled",
          .inputs = {x},
          .outputs = {y},
          .saved = {x},
          .backward = [](const Gradients& g) -> TensorList { return {g.outputs[0] * 2}; },
          .again =
              [made](const TensorList& saved) {
                ++*made;
                return saved[0] * 2;
              }});
  return y;
}

TEST(Autograd, WhatCanBeMadeAgainIsNotKeptAndIsMadeOnceForAllWhoReadIt) {
  const at::Tensor x = input(), w = input(), v = input();
  int made = 0;
  at::Tensor y = doubled(x, &made);
  const at::Tensor z = product(y, w).sum() + product(y, v).sum();
  const auto held = y.storage().getWeakStorageImpl();
  y.reset();
  EXPECT_TRUE(held.expired());
  z.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(made, 1);
  EXPECT_TRUE(w.grad().equal(x * 2));
  EXPECT_TRUE(x.grad().equal((w + v) * 2));
  z.backward();
  EXPECT_EQ(made, 2);
  EXPECT_TRUE(w.grad().equal(x * 4));
  EXPECT_THROW(z.backward(), std::exception);
}

TEST(Autograd, WhoAsksForTheGradientsOfOneReaderAloneGetsThem) {
  const at::Tensor x = input(), w = input();
  int made = 0;
  product(doubled(x, &made), w).sum().backward({}, false, false, std::vector<at::Tensor>{w});
  EXPECT_TRUE(w.grad().equal(x * 2));
  EXPECT_FALSE(x.grad().defined());
}

TEST(Autograd, SavedTensorsAreTheLastReadersWhereTheGraphIsNotKept) {
  const at::Tensor x = input();
  std::vector<bool> last;
  const at::Tensor y = x.detach() * 3;
  record({.name = "tripled",
          .inputs = {x},
          .outputs = {y},
          .saved = {x},
          .backward = [&last](const Gradients& g) -> TensorList {
            last.push_back(g.last);
            return {g.outputs[0] * 3};
          }});
  y.sum().backward({}, /*retain_graph=*/true);
  y.sum().backward();
  EXPECT_EQ(last, (std::vector<bool>{false, true}));
}

}  // namespace
}  // namespace troupe
