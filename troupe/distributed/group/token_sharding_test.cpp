#include "troupe/distributed/group/token_sharding.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "troupe/core/check.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using testing::in_threads;

at::Tensor tokens_of(int64_t T) {
  return at::arange(T * 2, at::kDouble).view({T, 2}) + 1;
}

TEST(TokenSharding, EveryTokenIsSomeRanksAndGatheringBringsThemBack) {
  for (const int ranks : {2, 3, 4}) {
    for (const int64_t T : {0, 1, 2, 7, 12}) {
      in_threads(ranks, [&](World& world) {
        const TokenSharding sharding(world.all());
        const at::Tensor all = tokens_of(T), own = sharding.own_rows(all);
        EXPECT_TRUE(at::equal(sharding.all_gather_no_grad(own, T), all));
        // Parts of a sum that say who gave them.
        const at::Tensor part = all * static_cast<double>(world.rank() + 1);
        const double sum = ranks * (ranks + 1) / 2.0;
        EXPECT_TRUE(at::equal(sharding.reduce_scatter_no_grad(part), own * sum));
        EXPECT_TRUE(at::equal(sharding.all_reduce_no_grad(part), all * sum));
      });
    }
  }
}

// L = sum of (rank + 1) gathered, and likewise: gradients are those of one process.
TEST(TokenSharding, GradientsAreThoseOfTheSum) {
  in_threads(3, [](World& world) {
    constexpr int64_t T = 7;
    const TokenSharding sharding(world.all());
    const auto factor = static_cast<double>(world.rank() + 1);
    const at::Tensor own = sharding.own_rows(tokens_of(T)).clone().requires_grad_();
    (sharding.all_gather(own, T).x_T * factor).sum().backward();
    EXPECT_TRUE(at::equal(own.grad(), at::full({sharding.own(T).count, 2}, 6.0, at::kDouble)));
    const at::Tensor part = tokens_of(T).requires_grad_();
    (sharding.reduce_scatter(part) * factor).sum().backward();
    for (int64_t r = 0; r < 3; ++r) {
      const TokenRange range = sharding.of_rank(r, T);
      EXPECT_TRUE(part.grad()
                      .narrow(0, range.from, range.count)
                      .eq(static_cast<double>(r + 1))
                      .all()
                      .item<bool>());
    }
    const at::Tensor x = tokens_of(2).requires_grad_();
    (sharding.all_reduce(x) * factor).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), at::full({2, 2}, 6.0, at::kDouble)));
  });
}

TEST(TokenSharding, HalfPrecisionPartsAreRoundedOnce) {
  in_threads(4, [](World& world) {
    const TokenSharding sharding(world.all());
    // 256 + 1 + 1 + 1 in bf16: each addition alone would round the ones away.
    const at::Tensor part = at::full({4, 1}, world.rank() == 0 ? 256.0 : 1.0, at::kBFloat16);
    EXPECT_EQ(sharding.reduce_scatter_no_grad(part).item<double>(), 260);  // 259, rounded
  });
}

TEST(TokenSharding, AloneItIsTheTensorItself) {
  const TokenSharding sharding;
  const at::Tensor x = tokens_of(3).requires_grad_();
  EXPECT_TRUE(sharding.all_gather(x, 3).x_T.is_same(x));
  EXPECT_TRUE(sharding.reduce_scatter(x).is_same(x));
  EXPECT_TRUE(sharding.own_rows(x).is_same(x));
}

TEST(TokenSharding, SizesAloneSendNothing) {
  const TokenSharding sharding = TokenSharding::of_sizes(4);
  EXPECT_EQ(sharding.own(8).count, 2);
  EXPECT_THROW(sharding.all_gather_no_grad(at::zeros({2, 1}), 8), Error);
  EXPECT_THROW(sharding.reduce_scatter_no_grad(at::zeros({8, 1})), Error);
}

}  // namespace
}  // namespace troupe
