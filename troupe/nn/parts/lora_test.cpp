#include "troupe/nn/parts/lora.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <vector>

#include "troupe/nn/parts/linear.h"

namespace troupe {
namespace {

constexpr int64_t kWide = 32, kTokens = 512;
constexpr double kDropped = 0.25;

// B A = 1: what the adapter adds is 2 d(x).
LoraFactors whole_factors(double dropout, DropPlace place = DropPlace::kQuery) {
  LoraFactors out({.rank = kWide, .alpha = 2.0 * kWide, .dropout = dropout}, kWide, kWide, place);
  for (Param* p : {&out.a, &out.b}) {
    p->allocate(at::kFloat);
    p->value = at::eye(kWide).requires_grad_();
  }
  return out;
}

at::Tensor ones_of(int64_t tokens) {
  return at::ones({tokens, kWide});
}

Context training(int64_t step = 3, int64_t first = 100) {
  return {.training = true, .seed = 7, .step = step, .layer = 2, .first_token = first};
}

TEST(LoraDropout, DropsAShareAndScalesTheRest) {
  const at::Tensor y = whole_factors(kDropped).delta(ones_of(kTokens), training());
  const at::Tensor dropped = y == 0;
  const double share = dropped.to(at::kDouble).mean().item<double>();
  // 16384 draws: five standard deviations.
  EXPECT_NEAR(share, kDropped, 5 * std::sqrt(kDropped * (1 - kDropped) / (kTokens * kWide)));
  const at::Tensor kept = y.masked_select(dropped.logical_not());
  EXPECT_LT((kept - 2 / (1 - kDropped)).abs().max().item<double>(), 1e-5);
  EXPECT_GT(dropped.any(1).to(at::kDouble).mean().item<double>(), 0.99) << "not whole rows alone";
}

TEST(LoraDropout, IsOffOutsideTrainingAndWithoutAdapters) {
  const at::Tensor x = ones_of(8), want = whole_factors(0).delta(x, training());
  Context evaluation = training();
  evaluation.training = false;
  EXPECT_TRUE(at::equal(whole_factors(kDropped).delta(x, evaluation), want));
  EXPECT_TRUE(
      at::equal(whole_factors(kDropped).delta_in(at::kDouble, x, evaluation).to(at::kFloat), want));
  const WithoutAdapters off;  // the reference of a preference loss
  EXPECT_EQ(whole_factors(kDropped).delta(x, training()).abs().max().item<double>(), 0);
}

TEST(LoraDropout, IsAFunctionOfStepLayerPlaceAndToken) {
  const LoraFactors f = whole_factors(kDropped);
  const at::Tensor x = ones_of(64), first = f.delta(x, training());
  EXPECT_TRUE(at::equal(f.delta(x, training()), first)) << "again, as in a recomputed pass";
  EXPECT_TRUE(at::equal(f.delta_in(at::kFloat, x, training()), first));
  EXPECT_FALSE(at::equal(f.delta(x, training(4)), first));
  Context deeper = training();
  deeper.layer = 3;
  EXPECT_FALSE(at::equal(f.delta(x, deeper), first));
  const LoraFactors key = whole_factors(kDropped, DropPlace::kKey);
  EXPECT_FALSE(at::equal(key.delta(x, training()), first));
  // The rows of another rank, by their place and by the index of each.
  EXPECT_TRUE(at::equal(f.delta(ones_of(24), training(3, 140)), first.narrow(0, 40, 24)));
  Context named = training(3, 0);
  named.index_T = at::arange(163, 99, -1, at::kLong);
  EXPECT_TRUE(at::equal(f.delta(x, named).flip(0), first));
}

TEST(LoraDropout, EachMatrixOfAJointProductDropsForItself) {
  const auto linear = [](DropPlace place) {
    Linear out({.out = kWide, .in = kWide, .init = {}, .place = place});
    out.weight.value = at::zeros({kWide, kWide});
    out.lora.emplace(whole_factors(kDropped, place));
    return out;
  };
  const Linear q = linear(DropPlace::kQuery), k = linear(DropPlace::kKey);
  const at::Tensor x = ones_of(64);
  const at::Tensor y = joined_linear(x, {&q, &k}, {.context = training()});
  EXPECT_TRUE(at::equal(y, at::cat({q.forward(x, training()), k.forward(x, training())}, 1)));
  EXPECT_FALSE(at::equal(y.narrow(1, 0, kWide), y.narrow(1, kWide, kWide)));
  EXPECT_TRUE(at::equal(joined_linear(x, {&q}), 2 * x)) << "no training";
}

// W [out, in] with an adapter and magnitudes, all of them drawn.
Linear decomposed(double dropout = 0) {
  Linear out({.out = 5,
              .in = kWide,
              .init = {},
              .lora = {.rank = 3, .alpha = 6, .dropout = dropout, .dora = true}});
  const auto draw = [](at::Tensor& value, at::IntArrayRef sizes, bool trained) {
    value = at::randn(sizes, at::kDouble).requires_grad_(trained);
  };
  draw(out.weight.value, {5, kWide}, false);
  draw(out.lora->a.value, {3, kWide}, true);
  draw(out.lora->b.value, {5, 3}, true);
  draw(out.lora->m->value, {5}, true);
  return out;
}

at::Tensor column(const at::Tensor& v) {
  return v.unsqueeze(1);
}

TEST(Dora, RowsHaveTheirMagnitudesAsNorms) {
  const Linear l = decomposed();
  const at::Tensor x = at::randn({7, kWide}, at::kDouble);
  const at::Tensor sum = l.weight.value + 2 * at::mm(l.lora->b.value, l.lora->a.value);
  const at::Tensor m = row_norms(l.weight.value) + l.lora->m->value;
  const at::Tensor w = sum * column(m / row_norms(sum.detach()));
  const at::Tensor want = at::mm(x, w.t()), got = l.forward(x);
  EXPECT_LT((got - want).abs().max().item<double>(), 1e-10);
  EXPECT_LT((joined_linear(x, {&l}) - want).abs().max().item<double>(), 1e-10);
  const at::Tensor dy = at::randn({7, 5}, at::kDouble);
  const std::vector<at::Tensor> of = {l.lora->a.value, l.lora->b.value, l.lora->m->value};
  const auto own = torch::autograd::grad({got}, of, {dy}),
             same = torch::autograd::grad({want}, of, {dy});
  for (size_t i = 0; i < of.size(); ++i) {
    EXPECT_LT((own[i] - same[i]).abs().max().item<double>(), 1e-9) << i;
  }
}

TEST(Dora, StartsAtTheBaseBitForBit) {
  Linear l = decomposed();
  l.lora->b.value.detach().zero_();
  l.lora->m->value.detach().zero_();
  const at::Tensor x = at::randn({7, kWide}, at::kDouble);
  EXPECT_TRUE(at::equal(l.forward(x), l.product(x)));
}

TEST(Dora, DropsTheInputOfTheFactorsAndOfTheScaledBase) {
  const Linear l = decomposed(kDropped);
  const at::Tensor x = at::randn({64, kWide}, at::kDouble);
  const at::Tensor seen = dropout(x, kDropped, DropPlace::kQuery, training());
  const at::Tensor got = l.forward(x, training());
  const at::Tensor want = l.product(x) + l.forward(seen) - l.product(seen);
  EXPECT_LT((got - want).abs().max().item<double>(), 1e-10);
  EXPECT_GT((got - l.forward(x)).abs().max().item<double>(), 1e-3);
}

TEST(LoraDropout, ARankWithSomeColumnsHasTheMaskOfThem) {
  const at::Tensor x = ones_of(64), whole = whole_factors(kDropped).delta(x, training());
  for (const int64_t from : {0, 16}) {
    LoraFactors part = whole_factors(kDropped);
    const at::Tensor columns = part.a.value.detach().narrow(1, from, 16).contiguous();
    part.a.value = at::Tensor();  // a box is taken before the value is made
    part.a.take_box(1, from, 16, Axis::kTensor);
    part.a.value = columns;
    const at::Tensor own = part.delta(x.narrow(1, from, 16), training());
    EXPECT_TRUE(at::equal(own.narrow(1, from, 16), whole.narrow(1, from, 16)));
    EXPECT_EQ(own.count_nonzero().item<int64_t>(),
              own.narrow(1, from, 16).count_nonzero().item<int64_t>());
  }
}

}  // namespace
}  // namespace troupe
