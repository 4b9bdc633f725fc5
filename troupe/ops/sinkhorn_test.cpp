#include "troupe/ops/sinkhorn.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "troupe/testing/torch/device.h"

namespace troupe {
namespace {

class SinkhornOp : public testing::DeviceTest {};

// The formula with ATen, in f64.
at::Tensor columns(const at::Tensor& logits, int64_t iterations) {
  const at::Tensor z = logits.to(at::kDouble);
  const double T = static_cast<double>(z.size(0)), E = static_cast<double>(z.size(1));
  at::Tensor v = at::zeros({z.size(1)}, z.options());
  for (int64_t i = 0; i < iterations; ++i) {
    const at::Tensor u = -at::logsumexp(z + v, {1}) - std::log(T);
    v = -at::logsumexp(z + u.unsqueeze(1), {0}) - std::log(E);
  }
  return v;
}

TEST_P(SinkhornOp, R12_AgreesWithAten) {
  const at::Tensor z = at::randn({500, 24}, device());
  const SinkhornResult r =
      sinkhorn(z, std::nullopt, {.top_k = 2, .tolerance = -1, .max_iterations = 5});
  EXPECT_EQ(r.iterations.item<int>(), 5);
  EXPECT_LT((r.v_E.to(at::kDouble) - columns(z, 5)).abs().max().item<double>(), 1e-5);
  const at::Tensor best = (z + r.v_E).argmax(1);
  EXPECT_GT(r.ids_TK.select(1, 0).eq(best).to(at::kDouble).mean().item<double>(), 0.995);
}

TEST_P(SinkhornOp, R12_BalancesTheChoice) {
  const at::Tensor z = at::randn({4096, 16}, device());
  z.select(1, 3).add_(4);
  const SinkhornResult r = sinkhorn(z, std::nullopt, {.top_k = 1});
  const at::Tensor counts = at::bincount(r.ids_TK.flatten(), {}, 16);
  EXPECT_LT(counts.max().item<int64_t>(), 2 * 4096 / 16);
  EXPECT_GT(counts.min().item<int64_t>(), 4096 / 16 / 2);
}

TEST_P(SinkhornOp, G3_MaskedTokensHaveNoChoice) {
  const at::Tensor z = at::randn({50, 8}, device());
  const at::Tensor valid = at::arange(50, device()).lt(30);
  const SinkhornResult masked = sinkhorn(z, valid, {.top_k = 2});
  const SinkhornResult alone = sinkhorn(z.narrow(0, 0, 30), std::nullopt, {.top_k = 2});
  EXPECT_TRUE(masked.ids_TK.narrow(0, 30, 20).eq(-1).all().item<bool>());
  EXPECT_TRUE(masked.ids_TK.narrow(0, 0, 30).equal(alone.ids_TK));
}

TEST_P(SinkhornOp, E1_NoTokens) {
  const SinkhornResult r = sinkhorn(at::zeros({0, 8}, device()), std::nullopt, {.top_k = 2});
  EXPECT_EQ(r.ids_TK.size(0), 0);
  EXPECT_EQ(r.iterations.item<int>(), 0);
}

TEST_P(SinkhornOp, E16_AnyStride) {
  const at::Tensor z = at::randn({8, 60}, device()).t();
  EXPECT_TRUE(sinkhorn(z, std::nullopt, {})
                  .ids_TK.equal(sinkhorn(z.contiguous(), std::nullopt, {}).ids_TK));
}
INSTANTIATE_TEST_SUITE_P(On, SinkhornOp, testing::devices(), testing::device_name);

TEST(SinkhornOp, RefusalsNameTheArgument) {
  const at::Tensor z = at::randn({6, 4});
  TROUPE_EXPECT_REFUSAL(sinkhorn(at::zeros({6}), std::nullopt, {}), "sinkhorn: logits");
  TROUPE_EXPECT_REFUSAL(sinkhorn(z.to(at::kLong), std::nullopt, {}), "sinkhorn: logits");
  TROUPE_EXPECT_REFUSAL(sinkhorn(z, at::zeros({5}, at::kBool), {}), "sinkhorn: valid");
  TROUPE_EXPECT_REFUSAL(sinkhorn(z, std::nullopt, {.top_k = 5}), "top_k");
  TROUPE_EXPECT_REFUSAL(sinkhorn(z, std::nullopt, {.max_iterations = 0}), "max_iterations");
}

}  // namespace
}  // namespace troupe
