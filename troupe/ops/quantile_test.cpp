#include "troupe/ops/quantile.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "troupe/testing/torch/device.h"

namespace troupe {
namespace {

class QuantileOp : public testing::DeviceTest {};

TEST_P(QuantileOp, R11_EqualsSortsOfAten) {
  const at::Tensor z = at::randn({777, 12}, device()), beta = at::randn({12}, device());
  const at::Tensor alpha = std::get<0>((z - beta).topk(4, 1)).select(1, 3);
  const at::Tensor left = std::get<0>((z - alpha.unsqueeze(1)).sort(0, /*descending=*/true));
  EXPECT_TRUE(troupe::quantile(z, beta, std::nullopt, 3).equal(left[777 * 3 / 12]));
}

TEST_P(QuantileOp, G3_MaskedTokensPlayNoPart) {
  const at::Tensor z = at::randn({50, 8}, device()), beta = at::zeros({8}, device());
  const at::Tensor valid = at::arange(50, device()).lt(31);
  EXPECT_TRUE(troupe::quantile(z, beta, valid, 2)
                  .equal(troupe::quantile(z.narrow(0, 0, 31), beta, std::nullopt, 2)));
}

TEST_P(QuantileOp, E1_NoTokensKeepBeta) {
  const at::Tensor beta = at::randn({8}, device());
  EXPECT_TRUE(troupe::quantile(at::zeros({0, 8}, device()), beta, std::nullopt, 2).equal(beta));
}

TEST_P(QuantileOp, E16_AnyStride) {
  const at::Tensor z = at::randn({8, 60}, device()).t(), beta = at::zeros({8}, device());
  EXPECT_TRUE(troupe::quantile(z, beta, std::nullopt, 2)
                  .equal(troupe::quantile(z.contiguous(), beta, std::nullopt, 2)));
}
INSTANTIATE_TEST_SUITE_P(On, QuantileOp, testing::devices(), testing::device_name);

TEST(QuantileOp, RefusalsNameTheArgument) {
  const at::Tensor z = at::randn({6, 4}), beta = at::zeros({4});
  TROUPE_EXPECT_REFUSAL(troupe::quantile(z[0], beta, std::nullopt, 2), "quantile: logits");
  TROUPE_EXPECT_REFUSAL(troupe::quantile(z, at::zeros({5}), std::nullopt, 2), "quantile: beta");
  TROUPE_EXPECT_REFUSAL(troupe::quantile(z, beta.to(at::kDouble), std::nullopt, 2),
                        "quantile: beta");
  TROUPE_EXPECT_REFUSAL(troupe::quantile(z, beta, at::zeros({5}, at::kBool), 2), "quantile: valid");
  TROUPE_EXPECT_REFUSAL(troupe::quantile(z, beta, std::nullopt, 4), "top_k 4 below experts 4");
}

}  // namespace
}  // namespace troupe
