#include "troupe/distributed/dispatch/null_dispatcher.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/where.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "troupe/distributed/dispatch/dispatcher.h"
#include "troupe/distributed/dispatch/local_dispatcher.h"

namespace troupe {
namespace {

// The layer of rank 1 of 4, which holds experts 2 and 3 of 8, is that of one process with two
// experts of which token t has e mod 2: in outputs and gradients, bit for bit. Masked choices stay.
TEST(NullDispatcher, EachTokenGoesToTheExpertsOfItsOwnRank) {
  constexpr int64_t T = 13, K = 3, D = 5, kHeld = 2;
  const auto null = null_dispatcher(1, contiguous(8, 4));
  const auto local = local_dispatcher(kHeld);
  const at::Tensor ids = at::randint(0, 8, {T, K}, at::kInt);
  ids.masked_fill_(at::rand({T, K}).lt(0.2), -1);
  const at::Tensor own = at::where(ids.lt(0), ids, ids.remainder(kHeld));
  const auto leaf = [](at::IntArrayRef size) {
    return at::randn(size, at::kFloat).requires_grad_();
  };
  const at::Tensor x = leaf({T, D}), scores = leaf({T, K}), w1 = leaf({kHeld, 8, D}),
                   w2 = leaf({kHeld, D, 4});
  const auto results = [&](Dispatcher& d, const at::Tensor& choices) {
    const std::vector<at::Tensor> leaves = {x, scores, w1, w2};
    for (const at::Tensor& one : leaves) one.mutable_grad().reset();
    const DispatchedRows rows = d.begin(x, {.ids_TK = choices, .scores_TK = scores}).finish();
    const ExpertWeights w{w1, std::nullopt, w2, std::nullopt};
    const at::Tensor y = rows.combine(moe_ffn(rows.source_SD, rows.scores_SK, rows.plan, w, {}));
    y.square().sum().backward();
    std::vector<at::Tensor> out = {y.detach()};
    for (const at::Tensor& one : leaves) out.push_back(one.grad().clone());
    return out;
  };
  const std::vector<at::Tensor> got = results(*null, ids), want = results(*local, own);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << i;
  EXPECT_EQ(null->info().held, (std::vector<int64_t>{2, 3}));
  EXPECT_FALSE(null->info().host_reads);
}

}  // namespace
}  // namespace troupe
