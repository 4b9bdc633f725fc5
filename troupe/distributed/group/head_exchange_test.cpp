#include "troupe/distributed/group/head_exchange.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "troupe/core/check.h"
#include "troupe/distributed/mesh/key_plan.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using testing::in_threads;

constexpr int64_t kRows = 2, kTokens = 24, kColumns = 3;

// Number of a token, a rank's heads and a column.
at::Tensor numbers(const at::Tensor& tokens_T, int64_t ranks) {
  const at::Tensor columns = at::arange(ranks * kColumns, at::kDouble).view({1, ranks, kColumns});
  return tokens_T.to(at::kDouble).view({-1, 1, 1}) * 100 + columns;
}

struct Part {
  HeadExchange exchange;
  at::Tensor places, order;
};
Part part_of(World& world) {
  const TokenChunks chunks = TokenChunks::zigzag(world.size(), kTokens);
  Part out{HeadExchange(world.all()), {}, at::arange(kRows * kTokens)};
  for (int64_t r = 0; r < world.size(); ++r) {
    const at::Tensor places = at::tensor(own_places(chunks, r, kRows), at::kLong);
    out.order.index_copy_(0, places, at::arange(places.size(0)) + r * places.size(0));
    if (r == world.rank()) out.places = places;
  }
  return out;
}

TEST(HeadExchange, TokensBecomeHeadsAndComeBack) {
  for (const int ranks : {1, 2, 3, 4}) {
    in_threads(ranks, [&](World& world) {
      const Part part = part_of(world);
      const at::Tensor own = numbers(part.places, ranks);
      const at::Tensor heads = part.exchange.to_heads(own, part.order);
      const at::Tensor all = numbers(at::arange(kRows * kTokens), ranks);
      EXPECT_TRUE(at::equal(heads, all.select(1, world.rank())));
      EXPECT_TRUE(at::equal(part.exchange.to_tokens(heads, part.order), own));
    });
  }
}

// L = sum of (rank + 1) times own heads: a column's gradient is that of the rank that has it.
TEST(HeadExchange, GradientsGoTheOtherWay) {
  in_threads(3, [](World& world) {
    const Part part = part_of(world);
    const at::Tensor own = numbers(part.places, 3).requires_grad_();
    const auto factor = static_cast<double>(world.rank() + 1);
    (part.exchange.to_heads(own, part.order) * factor).sum().backward();
    for (int64_t r = 0; r < 3; ++r) {
      EXPECT_TRUE(own.grad().select(1, r).eq(static_cast<double>(r + 1)).all().item<bool>());
    }
    const at::Tensor heads = at::full({kRows * kTokens, kColumns}, 1.0).requires_grad_();
    const at::Tensor weights = numbers(part.places, 3).to(at::kFloat);
    (part.exchange.to_tokens(heads, part.order) * weights).sum().backward();
    const at::Tensor all = numbers(at::arange(kRows * kTokens), 3).to(at::kFloat);
    EXPECT_TRUE(at::equal(heads.grad(), all.select(1, world.rank())));
  });
}

TEST(HeadExchange, RefusesHeadsOfOtherNumbersOfRanks) {
  const HeadExchange alone(std::make_shared<ProcessGroup>());
  EXPECT_THROW(alone.to_heads(at::full({4, 2, 1}, 1.0), at::arange(4)), Error);
  EXPECT_THROW(alone.to_tokens(at::full({3, 1}, 1.0), at::arange(4)), Error);
}

}  // namespace
}  // namespace troupe
