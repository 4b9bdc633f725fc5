#include "troupe/ops/support/late.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>

#include "troupe/ops/support/record_late.h"

namespace troupe {
namespace {

// y = x w, with a note of which halves its backward makes.
at::Tensor product(const at::Tensor& x, const at::Tensor& w, std::vector<std::string>* made) {
  at::Tensor y;
  {
    const at::NoGradGuard no_grad;
    y = at::mm(x, w);
  }
  record_late({.name = "product",
               .inputs = {x, w},
               .outputs = {y},
               .saved = {x, w},
               .backward = [made](const Gradients& g) -> TensorList {
                 TensorList out(2);
                 if (g.needs[0])
                   out[0] = at::mm(g.outputs[0], g.saved[1].t()), made->push_back("x");
                 if (g.needs[1])
                   out[1] = at::mm(g.saved[0].t(), g.outputs[0]), made->push_back("w");
                 return out;
               }},
              1);
  return y;
}

at::Tensor leaf() {
  return at::randn({3, 3}, at::kDouble).requires_grad_();
}

using Made = std::map<const at::TensorImpl*, at::Tensor>;
Made run(LateQueue& late) {
  Made out;
  late.run([&](const at::Tensor& parameter, const at::Tensor& gradient) {
    at::Tensor& sum = out[parameter.unsafeGetTensorImpl()];
    sum = sum.defined() ? sum + gradient : gradient;
  });
  return out;
}

TEST(Late, BothHalvesAreTheWholesBits) {
  const at::Tensor x = leaf(), v = leaf(), w = leaf();
  std::vector<std::string> made;
  const auto loss = [&] { return product(product(x, v, &made), w, &made).sin().sum(); };
  const TensorList whole = torch::autograd::grad({loss()}, {x, v, w});
  const auto late = std::make_shared<LateQueue>();
  made.clear();
  at::Tensor sum;
  {
    const LateScope scope(late);
    sum = loss();
  }
  EXPECT_EQ(LateScope::current(), nullptr);
  const TensorList half = torch::autograd::grad({sum}, {x, v, w}, {}, std::nullopt, false, true);
  EXPECT_EQ(made, (std::vector<std::string>{"x", "x"}));
  EXPECT_TRUE(half[0].equal(whole[0]));
  EXPECT_FALSE(half[1].defined());
  EXPECT_FALSE(half[2].defined());
  Made gradients = run(*late);
  EXPECT_EQ(made, (std::vector<std::string>{"x", "x", "w", "w"}));
  EXPECT_TRUE(gradients[v.unsafeGetTensorImpl()].equal(whole[1]));
  EXPECT_TRUE(gradients[w.unsafeGetTensorImpl()].equal(whole[2]));
  EXPECT_TRUE(late->empty());
}

TEST(Late, WhatIsComputedFromParametersIsNotPutOff) {
  const at::Tensor x = leaf(), w = leaf();
  std::vector<std::string> made;
  const auto late = std::make_shared<LateQueue>();
  const LateScope scope(late);
  const TensorList grads = torch::autograd::grad({product(x, w * 2, &made).sum()}, {x, w});
  EXPECT_TRUE(grads[1].defined());
  EXPECT_TRUE(late->empty());
}

TEST(Late, AViewOfAllOfAParameterIsPutOff) {
  const at::Tensor x = leaf(), w = at::randn({9}, at::kDouble).requires_grad_();
  std::vector<std::string> made;
  const auto loss = [&] { return product(x, w.view({3, 3}), &made).sin().sum(); };
  const at::Tensor whole = torch::autograd::grad({loss()}, {w})[0];
  const auto late = std::make_shared<LateQueue>();
  const LateScope scope(late);
  const TensorList half = torch::autograd::grad({loss()}, {x, w}, {}, std::nullopt, false, true);
  EXPECT_FALSE(half[1].defined());
  EXPECT_TRUE(run(*late)[w.unsafeGetTensorImpl()].equal(whole));
  // Its transpose is in another order.
  const at::Tensor v = leaf();
  EXPECT_TRUE(torch::autograd::grad({product(x, v.t(), &made).sum()}, {v})[0].defined());
  EXPECT_TRUE(late->empty());
}

TEST(Late, WithNothingElseToDifferentiateNothingIsPutOff) {
  const at::Tensor x = leaf().detach(), w = leaf();
  std::vector<std::string> made;
  const auto late = std::make_shared<LateQueue>();
  const LateScope scope(late);
  EXPECT_TRUE(torch::autograd::grad({product(x, w, &made).sum()}, {w})[0].defined());
  EXPECT_TRUE(late->empty());
}

TEST(Late, FrozenWeightsCostNothing) {
  const at::Tensor x = leaf(), w = leaf().detach();
  std::vector<std::string> made;
  const auto late = std::make_shared<LateQueue>();
  const LateScope scope(late);
  torch::autograd::grad({product(x, w, &made).sum()}, {x});
  run(*late);
  EXPECT_EQ(made, (std::vector<std::string>{"x"}));
}

TEST(Late, AGraphThatIsGoneLeavesItsTasks) {
  const at::Tensor x = leaf(), w = leaf();
  std::vector<std::string> made;
  const auto late = std::make_shared<LateQueue>();
  at::Tensor dw;
  {
    const LateScope scope(late);
    const at::Tensor y = product(x, w, &made);
    dw = at::mm(x.detach().t(), at::ones_like(y));
    torch::autograd::grad({y.sum()}, {x});
  }
  EXPECT_TRUE(run(*late)[w.unsafeGetTensorImpl()].equal(dw));
}

TEST(Late, ScopesNestAndAnEmptyOnePutsNothingOff) {
  const auto late = std::make_shared<LateQueue>();
  const LateScope scope(late);
  {
    const LateScope none(nullptr);
    EXPECT_EQ(LateScope::current(), nullptr);
  }
  EXPECT_EQ(LateScope::current(), late);
}

}  // namespace
}  // namespace troupe
