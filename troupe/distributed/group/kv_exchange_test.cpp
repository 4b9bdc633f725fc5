#include "troupe/distributed/group/kv_exchange.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "troupe/core/check.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using testing::in_threads;

constexpr int64_t kRows = 2, kTokens = 24, kWidth = 3;

// Row t of it names token t.
at::Tensor tokens_of(at::ScalarType type = at::kDouble) {
  return at::arange(kRows * kTokens * kWidth, type).view({-1, kWidth}) + 1;
}

struct Part {
  KvExchange exchange;
  at::Tensor places;                    // of own tokens
  std::shared_ptr<const KeyRows> rows;  // of the plan
  at::Tensor keys;                      // the places of the keys that it brings
};
Part part_of(World& world, const WholeRows& whole, int64_t window) {
  Part out{KvExchange(world.all()), {}, {}, {}};
  const TokenChunks chunks = TokenChunks::zigzag(world.size(), kTokens);
  out.places = at::tensor(own_places(chunks, world.rank(), kRows), at::kLong);
  out.rows = std::make_shared<const KeyRows>(
      key_rows(key_plan(chunks, world.rank(), whole, window), at::kCPU));
  out.keys = out.exchange.fetched(out.places.to(at::kDouble).unsqueeze(1), out.rows)
                 .squeeze(1)
                 .to(at::kLong);
  return out;
}

TEST(KvExchange, CX6_BringsTheKeysThatQueriesSee) {
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int64_t window : {0, 5}) {
      in_threads(ranks, [&](World& world) {
        const Part part = part_of(world, {kRows, {}}, window);
        const at::Tensor own = tokens_of().index_select(0, part.places);
        const at::Tensor keys = part.exchange.fetched(own, part.rows);
        EXPECT_TRUE(at::equal(keys, tokens_of().index_select(0, part.keys)));
        const int64_t last = part.places[-1].item<int64_t>();
        EXPECT_EQ(part.keys[-1].item<int64_t>(), last);
        if (window == 0) {
          EXPECT_EQ(part.keys.size(0), kRows * (last % kTokens + 1));
        }
      });
    }
  }
}

// L = sum of (rank + 1) times the keys fetched: a token's gradient is the sum over those who see
// it.
TEST(KvExchange, CX7_GradientsComeHome) {
  for (const int ranks : {1, 2, 3, 4}) {
    in_threads(ranks, [&](World& world) {
      const Part part = part_of(world, {kRows, {}}, 0);
      const at::Tensor own = tokens_of().index_select(0, part.places).requires_grad_();
      const auto factor = static_cast<double>(world.rank() + 1);
      (part.exchange.fetched(own, part.rows) * factor).sum().backward();
      const int64_t n = kTokens / (2 * ranks);
      for (int64_t i = 0; i < own.size(0); ++i) {
        const int64_t token = part.places[i].item<int64_t>() % kTokens;
        double want = 0;
        for (int64_t r = 0; r < ranks; ++r) {  // its late chunk ends behind all that it sees
          if (token < (2 * ranks - r) * n) want += static_cast<double>(r + 1);
        }
        EXPECT_EQ(own.grad()[i][0].item<double>(), want) << token;
      }
    });
  }
}

TEST(KvExchange, CX7_NarrowGradientsAreRoundedOnce) {
  in_threads(4, [](World& world) {
    const Part part = part_of(world, {kRows, {}}, 0);
    const at::Tensor own =
        tokens_of(at::kFloat).index_select(0, part.places).to(at::kBFloat16).requires_grad_();
    // 256 + 1 + 1 + 1 in bf16: each addition alone would round the ones away.
    const at::Tensor keys = part.exchange.fetched(own, part.rows);
    keys.backward(at::full(keys.sizes(), world.rank() == 0 ? 256.0 : 1.0, at::kBFloat16));
    if (world.rank() == 0) {
      EXPECT_EQ(own.grad()[0][0].item<double>(), 260);  // 259, rounded
    }
  });
}

TEST(KvExchange, KeysAreNotKeptForBackward) {
  in_threads(2, [](World& world) {
    const Part part = part_of(world, {kRows, {}}, 0);
    const at::Tensor own = tokens_of().index_select(0, part.places).requires_grad_();
    at::Tensor seen;
    {
      const at::Tensor keys = part.exchange.fetched(own, part.rows);
      at::Tensor out = keys.detach() * keys.detach();
      record({.name = "square",
              .inputs = {keys},
              .outputs = {out},
              .saved = {keys},
              .backward = [](const Gradients& g) -> TensorList {
                return {2 * g.outputs[0] * g.saved[0]};
              }});
      seen = out.sum();
    }
    seen.backward();  // the second exchange
    for (int64_t i = 0; i < own.size(0); ++i) {
      const int64_t token = part.places[i].item<int64_t>() % kTokens;
      const double readers = token < 3 * kTokens / 4 ? 2 : 1;
      EXPECT_EQ(own.grad()[i][0].item<double>(), 2 * readers * own[i][0].item<double>());
    }
  });
}

TEST(KvExchange, RowsOfNoTokensStillMeet) {
  in_threads(2, [](World& world) {
    const KvExchange exchange(world.all());
    const auto rows = std::make_shared<const KeyRows>(
        key_rows(key_plan(TokenChunks::zigzag(2, kTokens), world.rank(), {}, 0), at::kCPU));
    const at::Tensor none = at::full({0, kWidth}, 1.0).requires_grad_();
    const at::Tensor keys = exchange.fetched(none, rows);
    EXPECT_EQ(keys.sizes(), (std::vector<int64_t>{0, kWidth}));
    keys.sum().backward();
    EXPECT_EQ(none.grad().numel(), 0);
  });
}

TEST(KvExchange, RefusesAPlanForOthers) {
  const KvExchange alone;
  const auto rows = std::make_shared<const KeyRows>(
      key_rows(key_plan(TokenChunks::zigzag(2, 8), 0, {1, {}}, 0), at::kCPU));
  EXPECT_THROW(alone.fetched(at::full({4, 1}, 1.0), rows), Error);
}

}  // namespace
}  // namespace troupe
