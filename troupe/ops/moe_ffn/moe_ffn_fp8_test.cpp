#include "troupe/ops/moe_ffn/moe_ffn_fp8.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>

#include "troupe/core/check.h"
#include "troupe/ops/fp8.h"
#include "troupe/ops/moe_ffn/e4m3_groups_test.h"
#include "troupe/ops/moe_ffn/fp8_history_steps_test.h"
#include "troupe/ops/support/late.h"
#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"
#include "troupe/testing/torch/plan.h"

namespace troupe {
namespace {

using testing::Tensors;

struct Sizes {
  int64_t T, D, F, E, K;
};
constexpr Sizes kOdd = {300, 192, 160, 5, 2};

// The largest values of X, dH, A and dO in earlier steps; 0: there is none.
struct EarlierOfLayer {
  double x = 0, grad_hidden = 0, act = 0, grad = 0;
};

// x, weights, w1, w2 and the gradient of the output.
struct Layer {
  explicit Layer(Sizes s, uint64_t seed = 3) : sizes(s) {
    at::manual_seed(seed);
    const double D = std::sqrt(static_cast<double>(s.D)), F = std::sqrt(static_cast<double>(s.F));
    const auto normal = [&](at::IntArrayRef n, double size) {
      return (at::randn(n, at::kDouble) * size).to(at::kFloat);
    };
    tensors = {normal({s.T, s.D}, 1), at::rand({s.T, s.K}, at::kFloat),
               normal({s.E, 2 * s.F, s.D}, 1 / D), normal({s.E, s.D, s.F}, 1 / F)};
    grad = normal({s.T, s.D}, 1);
    ids = testing::random_ids(s.T, s.K, s.E, seed);
  }
  // Output, then the gradients of `tensors`.
  Tensors run(const Fp8Options& fp8 = {}, const FfnOptions& options = {}) const {
    for (const at::Tensor& t : tensors) {
      t.requires_grad_();
      t.mutable_grad().reset();
    }
    const at::Tensor out = moe_ffn_fp8(
        tensors[0], tensors[1], testing::plan_of(ids, sizes.E),
        {.w1 = tensors[2], .b1 = std::nullopt, .w2 = tensors[3], .b2 = std::nullopt}, options, fp8);
    out.backward(grad);
    Tensors results = {out.detach()};
    for (const at::Tensor& t : tensors) results.push_back(t.grad().clone());
    return results;
  }

  // The header's formulas in f64, expert by expert; `exact`: nothing is rounded. Of recipe delayed as
  // of tensor with `earlier`.
  Tensors by_definition(bool exact = false, Fp8Recipe recipe = Fp8Recipe::kRow,
                        EarlierOfLayer earlier = {}) const {
    Maxima maxima{.x = largest(tensors[0], earlier.x), .grad = largest(grad, earlier.grad)};
    if (recipe == Fp8Recipe::kTensor) {
      // The maximum over all experts is known once all have it.
      const Maxima own = own_maxima(earlier);
      maxima.act = largest(own.act, earlier.act);
      maxima.grad_hidden = largest(own.grad_hidden, earlier.grad_hidden);
    }
    return by_definition(exact, recipe, maxima, nullptr);
  }
  // Of the operands in a history's order, as they come out with `earlier`.
  at::Tensor own_largest(EarlierOfLayer earlier) const {
    const Maxima own = own_maxima(earlier);
    return largest_of({tensors[0], own.grad_hidden, own.act, grad});
  }

 private:
  struct Maxima {
    at::Tensor x, grad;
    at::Tensor act = at::zeros({}, at::kDouble), grad_hidden = at::zeros({}, at::kDouble);
  };
  static at::Tensor largest(const at::Tensor& t, double before) {
    const at::Tensor own = t.numel() > 0 ? t.detach().abs().max() : at::zeros({});
    return (before > 0 ? at::full_like(own, before) : own).to(at::kDouble);
  }
  Maxima own_maxima(EarlierOfLayer earlier) const {
    const Maxima given{.x = largest(tensors[0], earlier.x), .grad = largest(grad, earlier.grad)};
    Maxima out;
    by_definition(/*exact=*/false, Fp8Recipe::kTensor, given, &out);
    return out;
  }
  // With `found`: the largest |A| and |dH| as they come out when A is rounded by `given`.
  Tensors by_definition(bool exact, Fp8Recipe recipe, const Maxima& given, Maxima* found) const {
    const at::NoGradGuard no_grad;
    const auto wide = [](const at::Tensor& t) { return t.detach().to(at::kDouble); };
    const auto as_is = [](const at::Tensor& t) { return t; };
    const bool one = recipe == Fp8Recipe::kTensor;
    const auto weight = [&](const at::Tensor& t, const at::Tensor& expert) {
      if (exact) return as_is(t);
      return one ? round_whole(t, expert.abs().max()).value() : blocks(t);
    };
    const auto tile = [&](const at::Tensor& t, const at::Tensor& most) {
      if (exact) return as_is(t);
      return one ? round_whole(t, most).value() : tiles(t);
    };
    const auto block = [&](const at::Tensor& t, const at::Tensor& most) {
      if (exact) return as_is(t);
      return one ? round_whole(t, most).value() : blocks(t);
    };
    const auto row = [&](const at::Tensor& t, const at::Tensor& most) {
      if (exact) return Rounded{t, at::ones_like(t.slice(1, 0, 1))};
      return one ? round_whole(t, most) : round_groups(t);
    };
    const at::Tensor x = wide(tensors[0]), p = wide(tensors[1]), dO = wide(grad);
    const Rounded x8 = row(x, given.x), dO8 = row(dO, given.grad);
    const bool tiled = recipe == Fp8Recipe::kBlock;
    const at::Tensor x_rows = tiled ? tiles(x) : x8.value(),
                     dO_rows = tiled ? tiles(dO) : dO8.value();
    Tensors out = {at::zeros_like(x), at::zeros_like(x), at::zeros_like(p),
                   at::zeros_like(wide(tensors[2])), at::zeros_like(wide(tensors[3]))};
    for (int64_t e = 0; e < sizes.E; ++e) {
      const at::Tensor slots = ids.eq(e).nonzero();  // in the order of tokens, then k
      if (slots.size(0) == 0) continue;
      const at::Tensor t = slots.select(1, 0), k = slots.select(1, 1);
      const at::Tensor s = p.index({t, k}).unsqueeze(1);
      const at::Tensor w1 = wide(tensors[2])[e], w2 = wide(tensors[3])[e];
      const at::Tensor F1 = weight(w1.slice(0, 0, sizes.F), w1),
                       U1 = weight(w1.slice(0, sizes.F), w1);
      const at::Tensor W2 = weight(w2, w2);
      const at::Tensor X = x_rows.index({t}), G = dO_rows.index({t});
      const at::Tensor gate = at::mm(X, F1.t()), up = at::mm(X, U1.t());
      const at::Tensor sigma = at::sigmoid(gate), silu = gate * sigma;
      const at::Tensor A = s * silu * up, Y = at::mm(tile(A, given.act), W2.t());
      const at::Tensor dA = at::mm(G, W2);
      const at::Tensor dH = at::cat({dA * s * up * (sigma + silu * (1 - sigma)), dA * s * silu}, 1);
      const auto halves = [&](const auto& f, const at::Tensor& h, const at::Tensor& most) {
        // Gates and ups share no tile and no block.
        return at::cat({f(h.slice(1, 0, sizes.F), most), f(h.slice(1, sizes.F), most)}, 1);
      };
      if (found != nullptr) {
        found->act = at::maximum(found->act, A.abs().max());
        found->grad_hidden = at::maximum(found->grad_hidden, dH.abs().max());
        continue;
      }
      out[0].index_add_(0, t, Y);
      out[1].index_add_(0, t, at::mm(halves(tile, dH, given.grad_hidden), at::cat({F1, U1})));
      out[2].index_put_({t, k}, (dA * silu * up).sum(1));
      const at::Tensor sx = x8.scale.index({t}), so = dO8.scale.index({t});
      const at::Tensor x_largest = given.grad_hidden * x8.scale[0][0];
      const at::Tensor o_largest = given.act * dO8.scale[0][0];
      out[3][e] = at::mm(halves(block, sx * dH, x_largest).t(), x8.unscaled.index({t}));
      out[4][e] = at::mm(dO8.unscaled.index({t}).t(), block(so * A, o_largest));
    }
    return out;
  }

 public:
  Sizes sizes;
  Tensors tensors;
  at::Tensor grad, ids;
};

constexpr const char* kNames[] = {"out", "dX", "dS", "dW1", "dW2"};

// A float's rounding beside a tie of e4m3 moves single values by a step, hence not 1e-6.
TEST(MoeFfnFp8, Q8_EqualsTheDefinitionInOutputAndAllGradients) {
  for (const Sizes s : {kOdd, Sizes{40, 128, 128, 3, 1}}) {
    const Layer layer(s);
    const Tensors got = layer.run(), want = layer.by_definition();
    for (int i = 0; i < 5; ++i) EXPECT_LT(distance(got[i], want[i]), 2e-3) << kNames[i];
  }
}

TEST(MoeFfnFp8, Q8_21_OtherRecipesEqualTheirDefinitions) {
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensor, Fp8Recipe::kBlock}) {
    for (const Sizes s : {kOdd, Sizes{40, 256, 128, 3, 1}}) {
      const Layer layer(s);
      // Columns that make the rest of a row small beside its scale.
      layer.tensors[0].slice(1, s.D - 8) *= 500;
      const Tensors got = layer.run({.recipe = recipe}), row = layer.run();
      const Tensors want = layer.by_definition(/*exact=*/false, recipe);
      for (int i = 0; i < 5; ++i) {
        EXPECT_LT(distance(got[i], want[i]), 2e-3) << kNames[i] << to_text(recipe);
      }
      EXPECT_FALSE(at::equal(got[2], row[2]))
          << to_text(recipe) << " is recipe row";  // of H itself
    }
  }
}

// Of two steps before, newest first: none, larger values than at hand, and smaller ones, so that
// values of each operand are cut off; and of one operand alone.
TEST(MoeFfnFp8, Q8_21_DelayedEqualsItsDefinition) {
  const struct {
    HistorySteps steps;
    EarlierOfLayer largest;
    int64_t saturated;
  } cases[] = {{{{0, 0}, {0, 0}, {0, 0}, {0, 0}}, {}, 0},
               {{{9, 30}, {70, 6}, {8, 90}, {40, 0}}, {30, 70, 90, 40}, 0},
               {{{1, 0.5}, {0.1, 0.2}, {0.5, 0.25}, {0, 1}}, {1, 0.2, 0.5, 1}, 4},
               {{{1, 0.5}, {0, 0}, {0, 0}, {0, 0}}, {.x = 1}, 1}};
  for (const Sizes s : {kOdd, Sizes{40, 256, 128, 3, 1}}) {
    const Layer layer(s);
    for (const auto& c : cases) {
      const Fp8Options fp8 = delayed(c.steps);
      const Tensors got = layer.run(fp8);
      const Tensors want = layer.by_definition(/*exact=*/false, Fp8Recipe::kTensor, c.largest);
      for (int i = 0; i < 5; ++i) {
        EXPECT_LT(distance(got[i], want[i]), 2e-3) << kNames[i] << c.largest.x;
      }
      EXPECT_EQ(Fp8History::end_of_step({fp8.history.get()}).item<int64_t>(), c.saturated);
      const at::Tensor moved = steps_of(fp8), own = layer.own_largest(c.largest);
      EXPECT_TRUE(at::allclose(moved.select(1, 0), own, 1e-4)) << moved << own;
      EXPECT_TRUE(at::equal(moved.select(1, 1), newest(c.steps)));
    }
  }
}

// An expert's rows alone count; calls without a gradient and without rows do not.
TEST(MoeFfnFp8, Q8_21_AHistoryIsOfRowsOfExpertsThatAGradientFollows) {
  const HistorySteps before = {{2, 1}, {4, 3}, {6, 5}, {8, 7}};
  const Fp8Options fp8 = delayed(before);
  const auto end = [&] { Fp8History::end_of_step({fp8.history.get()}); };
  Layer layer(kOdd);
  {
    const at::NoGradGuard no_grad;
    moe_ffn_fp8(
        layer.tensors[0], layer.tensors[1], testing::plan_of(layer.ids, kOdd.E),
        {.w1 = layer.tensors[2], .b1 = std::nullopt, .w2 = layer.tensors[3], .b2 = std::nullopt},
        {}, fp8);
  }
  Layer({0, 128, 128, 3, 2}).run(fp8);
  layer.ids.fill_(-1);
  layer.run(fp8);
  end();
  EXPECT_TRUE(at::equal(steps_of(fp8), tensor_of(before)));
  Layer some(kOdd);
  some.ids[7].fill_(-1);
  some.tensors[0][7] *= 1000;
  some.run(fp8);
  end();
  EXPECT_LT(steps_of(fp8)[0][0].item<double>(), 10);
}

TEST(MoeFfnFp8, Q8_21_TheErrorOfOtherRecipesBesideUnroundedF64IsBounded) {
  const Layer layer({600, 256, 256, 4, 2});
  const Tensors want = layer.by_definition(/*exact=*/true);
  const double bounds[] = {0.072, 0.075, 0.078, 0.075, 0.075};
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensor, Fp8Recipe::kBlock}) {
    const Tensors got = layer.run({.recipe = recipe});
    for (int i = 0; i < 5; ++i) {
      EXPECT_LT(distance(got[i], want[i]), bounds[i]) << kNames[i] << to_text(recipe);
    }
  }
}

// Section 12, test 3, for normal data.
TEST(MoeFfnFp8, Q8_TheErrorBesideUnroundedF64IsBounded) {
  const Layer layer({600, 256, 256, 4, 2});
  const Tensors got = layer.run(), want = layer.by_definition(/*exact=*/true);
  const double bounds[] = {0.072, 0.075, 0.078, 0.075, 0.075};
  for (int i = 0; i < 5; ++i) {
    EXPECT_LT(distance(got[i], want[i]), bounds[i]) << kNames[i];
    EXPECT_GT(distance(got[i], want[i]), 0.02) << kNames[i] << ": nothing was rounded";
  }
  const Tensors unrounded = layer.run({.weight_grad = false});
  EXPECT_LT(distance(unrounded[3], want[3]), 0.064);
  EXPECT_LT(distance(unrounded[4], want[4]), 0.064);
}

TEST(MoeFfnFp8, Q8_2_GradientsTimesAPowerOfTwoAreTheSameBits) {
  Layer layer(kOdd);
  const Tensors one = layer.run();
  for (const int j : {-20, 20}) {
    Layer other(kOdd);
    other.grad = layer.grad * std::ldexp(1.0, j);
    const Tensors scaled = other.run();
    for (int i = 1; i < 5; ++i) {
      EXPECT_TRUE(at::equal(scaled[i], one[i] * std::ldexp(1.0, j))) << kNames[i] << " x 2^" << j;
    }
  }
}

// Q8-33: rows that were rounded before (on their way from another rank) have the same values when
// they are rounded here. A row's scale may be half then, and the other operand of a weight gradient
// takes it up before it is rounded: those gradients are as near as its subnormals.
TEST(MoeFfnFp8, Q8_33_RowsThatWereRoundedBeforeChangeNoOutputAndNoRowsGradient) {
  const Fp8Tiles whole_rows{};
  const auto rounded = [&](const at::Tensor& x) {
    const at::NoGradGuard no_grad;
    return dequantize_fp8(quantize_fp8(x, whole_rows), whole_rows, x.scalar_type());
  };
  const Layer layer(kOdd);
  Layer sent = layer;
  sent.tensors[0] = rounded(layer.tensors[0].detach());
  sent.grad = rounded(layer.grad);
  const Tensors want = layer.run(), got = sent.run();
  EXPECT_FALSE(at::equal(sent.tensors[0].detach(), layer.tensors[0].detach()));
  for (int i : {0, 1, 2}) EXPECT_TRUE(at::equal(got[i], want[i])) << kNames[i];
  for (int i : {3, 4}) EXPECT_LT(distance(got[i], want[i]), 1e-4) << kNames[i];
}

// Q8-3: a token's output and input gradient are the same bits alone and among others.
TEST(MoeFfnFp8, Q8_3_ATokensBitsDependOnThatTokenAlone) {
  const Layer all(kOdd);
  const Tensors want = all.run();
  for (const int64_t t : {0, 7, 299}) {
    Layer alone = all;
    alone.sizes.T = 1;
    for (int i : {0, 1}) alone.tensors[i] = all.tensors[i].detach().slice(0, t, t + 1).clone();
    alone.grad = all.grad.slice(0, t, t + 1).clone();
    alone.ids = all.ids.slice(0, t, t + 1).clone();
    const Tensors got = alone.run();
    for (int i : {0, 1, 2}) EXPECT_TRUE(at::equal(got[i][0], want[i][t])) << kNames[i] << ' ' << t;
  }
}

TEST(MoeFfnFp8, Q8_11_ANanReachesItsTokenAndItsExpertsGradientsAlone) {
  Layer layer(kOdd);
  layer.tensors[0][11][3] = NAN;
  const Tensors got = layer.run();
  const at::Tensor bad = got[0].isnan().any(1);
  EXPECT_EQ(bad.sum().item<int64_t>(), 1);
  EXPECT_TRUE(bad[11].item<bool>());
  for (int64_t e = 0; e < kOdd.E; ++e) {
    const bool its = layer.ids[11].eq(e).any().item<bool>();
    EXPECT_EQ(got[3][e].isnan().any().item<bool>(), its) << e;
    EXPECT_EQ(got[4][e].isnan().any().item<bool>(), its) << e;
  }
}

// Section 12, test 6: one unit's hidden value a thousand times larger.
TEST(MoeFfnFp8, Q8_AnOutlierChangesNoOtherToken) {
  Layer layer(kOdd), other(kOdd);
  other.tensors[0][5] *= 1000;
  const Tensors a = layer.run(), b = other.run();
  for (int64_t t = 0; t < kOdd.T; ++t) {
    EXPECT_EQ(at::equal(a[0][t], b[0][t]), t != 5) << t;
  }
}

// Weights that are kept in 8 bits give the bits of those that each call rounds, until they change.
TEST(MoeFfnFp8, Q8_KeptWeightsAreRoundedOnceAndAnewWhenTheyChange) {
  Layer layer(kOdd);
  const Fp8Options keeping{.kept = std::make_shared<Fp8Weights>()};
  const auto expect_fresh = [&](const Fp8Options& fp8, const char* when) {
    const Tensors got = layer.run(fp8), want = layer.run();
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << kNames[i] << when;
  };
  expect_fresh(keeping, " first");
  layer.tensors[0] = layer.tensors[0].detach() * 0.5;  // another microbatch
  expect_fresh(keeping, " second");
  for (const int i : {2, 3}) {
    const at::NoGradGuard no_grad;
    layer.tensors[i].detach().mul_(1.25);  // by an operator: a load, a copy
    const at::AutoGradMode grad(true);
    expect_fresh(keeping, " written");
    layer.tensors[i] = layer.tensors[i].detach() * 0.75;  // another tensor
    expect_fresh(keeping, " replaced");
  }
  const Tensors before = layer.run(keeping);
  for (const int i : {2, 3}) {  // as an optimizer's kernel writes
    auto* const values = static_cast<float*>(layer.tensors[i].mutable_data_ptr());
    for (int64_t j = 0; j < layer.tensors[i].numel(); ++j) values[j] *= 3;
  }
  const Tensors kept = layer.run(keeping);
  EXPECT_TRUE(at::equal(kept[0], before[0])) << "the weights were rounded in each call";
  EXPECT_FALSE(at::equal(kept[0], layer.run()[0]));
  expect_fresh({.kept = std::make_shared<Fp8Weights>()}, " after the update");
}

TEST(MoeFfnFp8, OV5_GradientsOfWeightsApartAreTheWholesBits) {
  const Layer layer(kOdd);
  for (const Fp8Options& fp8 :
       {Fp8Options{}, Fp8Options{.weight_grad = false}, Fp8Options{.recipe = Fp8Recipe::kTensor}}) {
    const Tensors want = layer.run(fp8);
    FfnOptions apart;
    apart.weights_order = take_backward_order();
    const Tensors got = layer.run(fp8, apart);
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << kNames[i];
  }
}

// The same in bf16 on each device, of each set of gradients that is wanted: bit i of `wanted` for
// tensor i. A Hopper GPU computes it on tensor cores.
class MoeFfnFp8On : public testing::DeviceTest {
 protected:
  void to_bf16_here(Layer& layer) const {
    for (const size_t i : {0, 2, 3}) layer.tensors[i] = layer.tensors[i].to(options(at::kBFloat16));
    layer.tensors[1] = layer.tensors[1].to(options());
    layer.grad = layer.grad.to(options(at::kBFloat16));
    layer.ids = layer.ids.to(device());
  }
};

Tensors wanted_gradients(const Layer& layer, unsigned wanted, const FfnOptions& options,
                         const Fp8Options& fp8) {
  Tensors some, grads;
  for (size_t i = 0; i < layer.tensors.size(); ++i) {
    some.push_back(layer.tensors[i].detach().clone().requires_grad_((wanted >> i & 1U) != 0));
  }
  moe_ffn_fp8(some[0], some[1], testing::plan_of(layer.ids, layer.sizes.E),
              {.w1 = some[2], .b1 = std::nullopt, .w2 = some[3], .b2 = std::nullopt}, options, fp8)
      .backward(layer.grad);
  for (const at::Tensor& t : some) grads.push_back(t.grad());
  return grads;
}

TEST_P(MoeFfnFp8On, OV5_GradientsOfWeightsApartAreTheWholesBits) {
  Layer layer({300, 256, 128, 4, 2});
  to_bf16_here(layer);
  for (const bool weight_grad : {true, false}) {
    const Fp8Options fp8{.weight_grad = weight_grad};
    for (const unsigned wanted : {5U, 9U, 12U, 13U, 15U}) {
      const Tensors want = wanted_gradients(layer, wanted, {}, fp8);
      FfnOptions apart;
      apart.weights_order = take_backward_order();
      const Tensors got = wanted_gradients(layer, wanted, apart, fp8);
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(got[i].defined(), want[i].defined()) << kNames[i + 1] << wanted;
        if (!want[i].defined()) continue;
        EXPECT_TRUE(at::equal(got[i], want[i])) << kNames[i + 1] << wanted;
      }
    }
  }
}

// In bf16 beside the definition in f64; on tensor cores with passes of their own (a Hopper GPU), and
// the same bits twice.
TEST_P(MoeFfnFp8On, Q8_21_OtherRecipesEqualTheirDefinitions) {
  for (const Sizes s : {Sizes{300, 256, 128, 4, 2}, Sizes{130, 128, 384, 3, 1}}) {
    for (const Fp8Recipe recipe : {Fp8Recipe::kTensor, Fp8Recipe::kBlock}) {
      for (const bool weight_grad : {true, false}) {
        Layer layer(s);
        for (at::Tensor& t : layer.tensors) t = t.to(at::kBFloat16).to(at::kFloat);
        layer.grad = layer.grad.to(at::kBFloat16).to(at::kFloat);
        const Tensors want = layer.by_definition(/*exact=*/false, recipe);
        to_bf16_here(layer);
        const Fp8Options fp8{.weight_grad = weight_grad, .recipe = recipe};
        const Tensors got = layer.run(fp8), again = layer.run(fp8);
        for (int i = 0; i < 5; ++i) {
          const std::string what = std::string(kNames[i]) + to_text(recipe) + to_text(weight_grad);
          // H and A are rounded to bf16 before they are to 8 bits: some values are a step apart.
          const bool wide = !weight_grad && i > 2;
          EXPECT_LT(distance(got[i].cpu(), want[i]), wide ? 0.06 : 0.02) << what;
          EXPECT_TRUE(at::equal(got[i], again[i])) << what;
        }
      }
    }
  }
}

TEST_P(MoeFfnFp8On, Q8_21_DelayedEqualsItsDefinition) {
  Layer layer({300, 256, 128, 4, 2});
  for (at::Tensor& t : layer.tensors) t = t.to(at::kBFloat16).to(at::kFloat);
  layer.grad = layer.grad.to(at::kBFloat16).to(at::kFloat);
  const Tensors want = layer.by_definition(/*exact=*/false, Fp8Recipe::kTensor, {1, 70, 0.5, 9});
  to_bf16_here(layer);
  const Fp8Options fp8 = delayed({{1, 0.5}, {70, 6}, {0.25, 0.5}, {9, 0}}, device());
  const Tensors got = layer.run(fp8), again = layer.run(fp8);
  for (int i = 0; i < 5; ++i) {
    EXPECT_LT(distance(got[i].cpu(), want[i]), 0.02) << kNames[i];
    EXPECT_TRUE(at::equal(got[i], again[i])) << kNames[i];
  }
  EXPECT_EQ(Fp8History::end_of_step({fp8.history.get()}).item<int64_t>(), 2);
}

TEST_P(MoeFfnFp8On, Q8_21_ATensorWithOneScaleTakesNoTokens) {
  Layer layer({0, 128, 128, 3, 2});
  to_bf16_here(layer);
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensor, Fp8Recipe::kBlock}) {
    const Tensors got = layer.run({.recipe = recipe});
    EXPECT_EQ(got[0].size(0), 0);
    EXPECT_EQ(got[3].abs().sum().item<double>(), 0);
    EXPECT_EQ(got[4].abs().sum().item<double>(), 0);
  }
}

TROUPE_ON_DEVICES(MoeFfnFp8On);

// In a scope they wait for the queue.
TEST(MoeFfnFp8, OV5_GradientsOfWeightsThatAreLateAreTheWholesBits) {
  const Layer layer(kOdd);
  const Tensors want = layer.run();
  const auto queue = std::make_shared<LateQueue>();
  for (const at::Tensor& t : layer.tensors) t.mutable_grad().reset();
  at::Tensor out;
  {
    const LateScope scope(queue);
    out = moe_ffn_fp8(
        layer.tensors[0], layer.tensors[1], testing::plan_of(layer.ids, kOdd.E),
        {.w1 = layer.tensors[2], .b1 = std::nullopt, .w2 = layer.tensors[3], .b2 = std::nullopt},
        {}, {});
  }
  out.backward(layer.grad);
  EXPECT_TRUE(at::equal(layer.tensors[0].grad(), want[1]));
  EXPECT_TRUE(at::equal(layer.tensors[1].grad(), want[2]));
  EXPECT_FALSE(layer.tensors[2].grad().defined());
  EXPECT_FALSE(layer.tensors[3].grad().defined());
  int given = 0;
  queue->run([&](const at::Tensor& parameter, const at::Tensor& gradient) {
    const int i = parameter.is_same(layer.tensors[2]) ? 2 : 3;
    EXPECT_TRUE(at::equal(gradient, want[i + 1])) << kNames[i + 1];
    ++given;
  });
  EXPECT_EQ(given, 2);
}

TEST(MoeFfnFp8, TakesNoTokens) {
  const Layer layer({0, 128, 128, 3, 2});
  const Tensors got = layer.run();
  EXPECT_EQ(got[0].size(0), 0);
  EXPECT_EQ(got[3].abs().sum().item<double>(), 0);
}

TEST(MoeFfnFp8, RefusesNarrowExperts) {
  EXPECT_THROW(Layer({4, 64, 128, 3, 2}).run(), Error);
  EXPECT_THROW(Layer({4, 128, 64, 3, 2}).run(), Error);
}

}  // namespace
}  // namespace troupe
