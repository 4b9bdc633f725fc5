#include "troupe/distributed/group/token_edge.h"

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

TEST(TokenEdge, EveryTokenIsSomeRanksAndGatheringBringsThemBack) {
  for (const int ranks : {2, 3, 4}) {
    for (const int64_t T : {0, 1, 2, 7, 12}) {
      in_threads(ranks, [&](World& world) {
        const TokenEdge edge(world.all());
        const at::Tensor all = tokens_of(T), own = edge.own_rows(all);
        EXPECT_TRUE(at::equal(edge.gather(own, T), all));
        // Parts of a sum that say who gave them.
        const at::Tensor part = all * static_cast<double>(world.rank() + 1);
        const double sum = ranks * (ranks + 1) / 2.0;
        EXPECT_TRUE(at::equal(edge.scatter(part), own * sum));
        EXPECT_TRUE(at::equal(edge.sum(part), all * sum));
      });
    }
  }
}

// L = sum of (rank + 1) gathered, and likewise: gradients are those of one process.
TEST(TokenEdge, GradientsAreThoseOfTheSum) {
  in_threads(3, [](World& world) {
    constexpr int64_t T = 7;
    const TokenEdge edge(world.all());
    const auto factor = static_cast<double>(world.rank() + 1);
    const at::Tensor own = edge.own_rows(tokens_of(T)).clone().requires_grad_();
    (edge.gathered(own, T).x_T * factor).sum().backward();
    EXPECT_TRUE(at::equal(own.grad(), at::full({edge.own(T).count, 2}, 6.0, at::kDouble)));
    const at::Tensor part = tokens_of(T).requires_grad_();
    (edge.scattered(part) * factor).sum().backward();
    for (int64_t r = 0; r < 3; ++r) {
      const TokenRange range = edge.of_rank(r, T);
      EXPECT_TRUE(part.grad()
                      .narrow(0, range.from, range.count)
                      .eq(static_cast<double>(r + 1))
                      .all()
                      .item<bool>());
    }
    const at::Tensor x = tokens_of(2).requires_grad_();
    (edge.summed(x) * factor).sum().backward();
    EXPECT_TRUE(at::equal(x.grad(), at::full({2, 2}, 6.0, at::kDouble)));
  });
}

TEST(TokenEdge, HalfPrecisionPartsAreRoundedOnce) {
  in_threads(4, [](World& world) {
    const TokenEdge edge(world.all());
    // 256 + 1 + 1 + 1 in bf16: each addition alone would round the ones away.
    const at::Tensor part = at::full({4, 1}, world.rank() == 0 ? 256.0 : 1.0, at::kBFloat16);
    EXPECT_EQ(edge.scatter(part).item<double>(), 260);  // 259, rounded
  });
}

TEST(TokenEdge, AloneItIsTheTensorItself) {
  const TokenEdge edge;
  const at::Tensor x = tokens_of(3).requires_grad_();
  EXPECT_TRUE(edge.gathered(x, 3).x_T.is_same(x));
  EXPECT_TRUE(edge.scattered(x).is_same(x));
  EXPECT_TRUE(edge.own_rows(x).is_same(x));
}

TEST(TokenEdge, SizesAloneSendNothing) {
  const TokenEdge edge = TokenEdge::of_sizes(4);
  EXPECT_EQ(edge.own(8).count, 2);
  EXPECT_THROW(edge.gather(at::zeros({2, 1}), 8), Error);
  EXPECT_THROW(edge.scatter(at::zeros({8, 1})), Error);
}

}  // namespace
}  // namespace troupe
