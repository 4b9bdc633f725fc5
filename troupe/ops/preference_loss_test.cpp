#include "troupe/ops/preference_loss.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "troupe/core/check.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using testing::Tensors;

at::Tensor reference() {
  return at::tensor({-11., -12., -2., -2.5}, at::kDouble);
}
at::Tensor targets() {
  return at::tensor({4., 5., 1., 2.}, at::kDouble);
}
at::Tensor policy() {
  return at::tensor({-10., -14., -3., -2.}, at::kDouble);
}

PreferenceLoss loss_of(const PreferenceOptions& options) {
  return preference_loss({policy(), reference(), targets()}, options);
}

double log_sigmoid(double x) {
  return -std::log1p(std::exp(-x));
}

// d of the first pair is (1) - (-2) = 3, of the second (-1) - (0.5) = -1.5.
TEST(PreferenceLossOp, IsTheFormulaOfDpo) {
  EXPECT_NEAR(loss_of({.beta = 0.5}).loss.item<double>(), -log_sigmoid(1.5) - log_sigmoid(-0.75),
              1e-12);
  const double smoothed = -0.9 * (log_sigmoid(1.5) + log_sigmoid(-0.75)) -
                          0.1 * (log_sigmoid(-1.5) + log_sigmoid(0.75));
  EXPECT_NEAR(loss_of({.beta = 0.5, .label_smoothing = 0.1}).loss.item<double>(), smoothed, 1e-12);
}

TEST(PreferenceLossOp, IsTheFormulaOfHingeAndIpo) {
  EXPECT_NEAR(loss_of({.beta = 0.5, .loss = PreferenceForm::kHinge}).loss.item<double>(), 0 + 1.75,
              1e-12);
  // Means a target: 1/4 + 2/5 and -1/1 - 0.5/2, less 1 / (2 beta) = 1.
  const double first = 0.65 - 1, second = -1.25 - 1;
  EXPECT_NEAR(loss_of({.beta = 0.5, .loss = PreferenceForm::kIpo}).loss.item<double>(),
              first * first + second * second, 1e-12);
}

TEST(PreferenceLossOp, RewardsAreOfEachAnswer) {
  const at::Tensor rewards = loss_of({.beta = 0.5}).rewards_3;
  EXPECT_NEAR(rewards[0].item<double>(), 0.5 * (1 - 1), 1e-12);
  EXPECT_NEAR(rewards[1].item<double>(), 0.5 * (-2 + 0.5), 1e-12);
  EXPECT_EQ(rewards[2].item<double>(), 1);
  EXPECT_FALSE(rewards.requires_grad());
}

TEST(PreferenceLossOp, GradientsAgreeWithTheJacobian) {
  for (const PreferenceForm form :
       {PreferenceForm::kSigmoid, PreferenceForm::kIpo, PreferenceForm::kHinge}) {
    const double smoothing = form == PreferenceForm::kSigmoid ? 0.2 : 0;
    const auto f = [&](const Tensors& in) {
      const PreferenceOptions options{.beta = 0.3, .label_smoothing = smoothing, .loss = form};
      return preference_loss({in[0], reference(), targets()}, options).loss;
    };
    testing::expect_gradients(f, {policy().requires_grad_()});
  }
}

TEST(PreferenceLossOp, RowsAreSumsOfLogProbabilities) {
  const at::Tensor x = at::randn({6, 5}, at::kDouble).requires_grad_();
  const at::Tensor w = at::randn({11, 5}, at::kDouble).requires_grad_();
  const at::Tensor labels = at::randint(11, {6}, at::kLong);
  const at::Tensor weights = at::tensor({0., 1., 1., 0., 0., 1.}, at::kDouble);
  const at::Tensor rows = row_log_probs({x, w, labels, weights}, 2, 2);
  const at::Tensor all = at::log_softmax(x.matmul(w.t()), 1).gather(1, labels.unsqueeze(1));
  const at::Tensor wanted = (all.squeeze(1) * weights).view({2, 3}).sum(1);
  EXPECT_LT((rows - wanted).abs().max().item<double>(), 1e-12);
  const auto f = [&](const Tensors& in) {
    return row_log_probs({in[0], in[1], labels, weights}, 2, 2);
  };
  testing::expect_gradients(f, {x, w});
}

TEST(PreferenceLossOp, NoPairsHaveNoLoss) {
  const at::Tensor x = at::zeros({0, 5}, at::kDouble).requires_grad_();
  const at::Tensor none = at::zeros({0}, at::kDouble);
  const at::Tensor rows =
      row_log_probs({x, at::ones({3, 5}, at::kDouble), at::zeros({0}, at::kLong), none}, 0, 4);
  const PreferenceLoss loss = preference_loss({rows, none, none}, {});
  EXPECT_EQ(loss.loss.item<double>(), 0);
  EXPECT_EQ(loss.rewards_3.sum().item<double>(), 0);
  loss.loss.backward();
  EXPECT_EQ(x.grad().numel(), 0);
}

TEST(PreferenceLossOp, RefusesHalfAPair) {
  const at::Tensor one = at::zeros({1}, at::kDouble);
  EXPECT_THROW(preference_loss({one, one, one}, {}), Error);
}

}  // namespace
}  // namespace troupe
