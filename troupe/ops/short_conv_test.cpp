#include "troupe/ops/short_conv.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using testing::Tensors;

class ShortConvOp : public testing::DeviceTest {};

TEST_P(ShortConvOp, EqualsConv1dOfAtenInEachDocument) {
  const std::vector<int64_t> lengths = {5, 1, 0, 2, 9};
  const at::Tensor x = at::randn({17, 6}, device()), w = at::randn({6, 4}, device());
  const at::Tensor y = short_conv(x, w, {.lengths = lengths}).y_TC;
  int64_t from = 0;
  for (const int64_t n : lengths) {
    if (n == 0) continue;
    const at::Tensor one = x.narrow(0, from, n).t().unsqueeze(0);
    const at::Tensor all = at::conv1d(one, w.unsqueeze(1), {}, 1, 3, 1, 6);
    const at::Tensor want = at::silu(all[0].narrow(1, 0, n).t());
    EXPECT_LT((y.narrow(0, from, n) - want).abs().max().item<double>(), 1e-5) << from;
    from += n;
  }
}

TEST_P(ShortConvOp, GoesOnFromTheLastInputs) {
  const at::Tensor x = at::randn({12, 6}, device()), w = at::randn({6, 4}, device());
  const at::Tensor whole = short_conv(x, w, {.lengths = {12}}).y_TC;
  ShortConvResult one = short_conv(x.narrow(0, 0, 2), w, {.lengths = {2}});
  for (int64_t t = 2; t < 12; ++t) {
    one = short_conv(x.narrow(0, t, 1), w, {.lengths = {1}, .before = one.last});
    EXPECT_LT((one.y_TC - whole.narrow(0, t, 1)).abs().max().item<double>(), 1e-6) << t;
  }
}

TEST_P(ShortConvOp, E1_NoTokens) {
  const at::Tensor x = at::zeros({0, 6}, device()).requires_grad_();
  short_conv(x, at::randn({6, 4}, device()).requires_grad_(), {.lengths = {}})
      .y_TC.sum()
      .backward();
  EXPECT_EQ(x.grad().size(0), 0);
}
INSTANTIATE_TEST_SUITE_P(On, ShortConvOp, testing::devices(), testing::device_name);

TEST(ShortConvOp, AgreesWithTheNumericJacobian) {
  testing::expect_gradients(
      [](const Tensors& x) {
        return short_conv(x[0], x[1], {.lengths = {5, 1, 7}}).y_TC;
      },
      {at::randn({13, 3}, at::kDouble).requires_grad_(),
       at::randn({3, 4}, at::kDouble).requires_grad_()});
}

TEST(ShortConvOp, RefusalsNameTheArgument) {
  const at::Tensor x = at::randn({6, 3}), w = at::randn({3, 4});
  TROUPE_EXPECT_REFUSAL(short_conv(x, at::randn({2, 4}), {.lengths = {6}}),
                        "short_conv: x must be");
  TROUPE_EXPECT_REFUSAL(short_conv(x, w, {.lengths = {5}}), "the documents have 5 tokens");
  TROUPE_EXPECT_REFUSAL(short_conv(x, w, {.lengths = {6}, .before = at::zeros({1, 2, 3})}),
                        "short_conv: before must be");
}

}  // namespace
}  // namespace troupe
