#include "troupe/nn/moe/loss_edge.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "troupe/core/check.h"

namespace troupe {
namespace {

TEST(LossEdge, A7_IsTheIdentityForwardAndAddsTheWeightedLossBackward) {
  const at::Tensor x = at::randn({4, 3}, at::kDouble).requires_grad_();
  const at::Tensor p = at::randn({3}, at::kDouble).requires_grad_();
  const at::Tensor y = x * 2, out = with_loss(y, (p * p).sum(), 0.25);
  EXPECT_TRUE(out.equal(y));
  EXPECT_EQ(out.const_data_ptr(), y.const_data_ptr());
  (out * 3).sum().backward();
  EXPECT_TRUE(x.grad().equal(at::ones({4, 3}, at::kDouble) * 6));
  EXPECT_TRUE(p.grad().equal(p * 0.5));
}

TEST(LossEdge, A7_ReachesTheLossWhereTheOutputAloneWantsNoGradient) {
  const at::Tensor p = at::ones({}, at::kDouble).requires_grad_();
  (with_loss(at::ones({2}), p * 5, 2.0) * 7).sum().backward();
  EXPECT_EQ(p.grad().item<double>(), 10.0);
}

TEST(LossEdge, A7_CostsNothingWithoutGradients) {
  const at::Tensor y = at::ones({2}), loss = at::ones({});
  EXPECT_TRUE(with_loss(y, loss, 1).is_same(y));
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(with_loss(y, loss.requires_grad_(), 1).is_same(y));
}

TEST(LossEdge, RefusesALossThatIsNoScalar) {
  EXPECT_THROW(with_loss(at::ones({2}), at::ones({2}), 1), Error);
}

}  // namespace
}  // namespace troupe
