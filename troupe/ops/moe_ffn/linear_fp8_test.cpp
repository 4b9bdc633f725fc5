#include "troupe/ops/moe_ffn/linear_fp8.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>

#include "troupe/core/check.h"
#include "troupe/ops/moe_ffn/e4m3_groups_test.h"
#include "troupe/ops/moe_ffn/fp8_history_steps_test.h"
#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using testing::Tensors;

// The largest values of X and dY in earlier steps; 0: there is none.
struct EarlierOfLinear {
  double x = 0, grad = 0;
};

// x, w and the gradient of the output.
struct LinearProduct {
  LinearProduct(int64_t T, int64_t N, int64_t K) {
    at::manual_seed(5);
    x = at::randn({T, K}, at::kFloat);
    w = at::randn({N, K}, at::kFloat) / std::sqrt(static_cast<double>(K));
    grad = at::randn({T, N}, at::kFloat);
  }
  // Output, dX, dW.
  Tensors run(const Fp8Options& fp8 = {}) const {
    for (const at::Tensor& t : {x, w}) {
      t.requires_grad_();
      t.mutable_grad().reset();
    }
    const at::Tensor y = linear_fp8(x, w, {.options = fp8});
    y.backward(grad);
    return {y.detach(), x.grad().clone(), w.grad().clone()};
  }
  // The header's formulas in f64; `exact`: nothing is rounded. Of recipe delayed as of tensor with
  // `earlier`.
  Tensors by_definition(bool exact = false, Fp8Recipe recipe = Fp8Recipe::kRow,
                        EarlierOfLinear earlier = {}) const {
    const at::NoGradGuard no_grad;
    const auto wide = [](const at::Tensor& t) { return t.detach().to(at::kDouble); };
    const at::Tensor X = wide(x), W = wide(w), dY = wide(grad);
    if (exact) return {at::mm(X, W.t()), at::mm(dY, W), at::mm(dY.t(), X)};
    if (recipe == Fp8Recipe::kTensor) {
      const auto whole = [](const at::Tensor& t, double before = 0) {
        const at::Tensor own = t.abs().max();
        return round_whole(t, before > 0 ? at::full_like(own, before) : own).value();
      };
      const at::Tensor x1 = whole(X, earlier.x), w1 = whole(W), dy1 = whole(dY, earlier.grad);
      return {at::mm(x1, w1.t()), at::mm(dy1, w1), at::mm(dy1.t(), x1)};
    }
    const Rounded x8 = round_groups(X);
    const at::Tensor rows = recipe == Fp8Recipe::kBlock ? tiles(X) : x8.value();
    return {at::mm(rows, blocks(W).t()), at::mm(tiles(dY), blocks(W)),
            at::mm(blocks(x8.scale * dY).t(), x8.unscaled)};
  }

  at::Tensor x, w, grad;
};

constexpr const char* kProductNames[] = {"y", "dX", "dW"};

// A float's rounding beside a tie of e4m3 moves single values by a step, hence not 1e-6.
TEST(LinearFp8, Q8_18_EqualsTheDefinitionInOutputAndGradients) {
  for (const auto [T, N, K] : {std::array{300, 160, 192}, std::array{1, 128, 128}}) {
    const LinearProduct p(T, N, K);
    const Tensors got = p.run(), want = p.by_definition();
    for (int i = 0; i < 3; ++i) EXPECT_LT(distance(got[i], want[i]), 2e-3) << kProductNames[i];
  }
}

TEST(LinearFp8, Q8_21_OtherRecipesEqualTheirDefinitions) {
  for (const Fp8Recipe recipe : {Fp8Recipe::kTensor, Fp8Recipe::kBlock}) {
    for (const auto [T, N, K] : {std::array{300, 160, 192}, std::array{1, 128, 256}}) {
      const LinearProduct p(T, N, K);
      const Tensors got = p.run({.recipe = recipe}), want = p.by_definition(false, recipe);
      for (int i = 0; i < 3; ++i) {
        EXPECT_LT(distance(got[i], want[i]), 2e-3) << kProductNames[i] << to_text(recipe);
      }
    }
    EXPECT_EQ(LinearProduct(0, 128, 128).run({.recipe = recipe})[2].abs().sum().item<double>(), 0);
  }
}

// Of two steps before, newest first: none, larger values than at hand, and smaller ones, so that
// values are cut off.
TEST(LinearFp8, Q8_21_DelayedEqualsItsDefinition) {
  const struct {
    HistorySteps steps;
    EarlierOfLinear largest;
    int64_t saturated;
  } cases[] = {{{{0, 0}, {0, 0}}, {0, 0}, 0},
               {{{9, 30}, {70, 6}}, {30, 70}, 0},
               {{{0.5, 0.25}, {0, 0.1}}, {0.5, 0.1}, 2}};
  const LinearProduct p(300, 160, 192);
  const at::Tensor largest = largest_of({p.x, p.grad});
  for (const auto& c : cases) {
    const Fp8Options fp8 = delayed(c.steps);
    const Tensors got = p.run(fp8), want = p.by_definition(false, Fp8Recipe::kTensor, c.largest);
    for (int i = 0; i < 3; ++i) {
      EXPECT_LT(distance(got[i], want[i]), 2e-3) << kProductNames[i] << c.largest.x;
    }
    EXPECT_EQ(Fp8History::end_of_step({fp8.history.get()}).item<int64_t>(), c.saturated);
    EXPECT_TRUE(at::equal(steps_of(fp8), at::stack({largest, newest(c.steps)}, 1)));
  }
}

TEST(LinearFp8, Q8_21_WithoutAGradientOrRowsAHistoryStays) {
  const HistorySteps before = {{2, 1}, {4, 3}};
  const Fp8Options fp8 = delayed(before);
  const LinearProduct p(40, 128, 128);
  {
    const at::NoGradGuard no_grad;
    linear_fp8(p.x, p.w, {.options = fp8});
  }
  LinearProduct(0, 128, 128).run(fp8);
  EXPECT_EQ(Fp8History::end_of_step({fp8.history.get()}).item<int64_t>(), 0);
  EXPECT_TRUE(at::equal(steps_of(fp8), tensor_of(before)));
}

// As in a group of any recipe (Q8-11): what is not finite must not be cut off to what is.
TEST(LinearFp8, Q8_11_WhatIsNotFiniteIsSeenUnderDelayedAndNotRemembered) {
  for (const double bad : {static_cast<double>(NAN), static_cast<double>(INFINITY)}) {
    const Fp8Options fp8 = delayed({{2, 1}, {4, 3}});
    const LinearProduct p(40, 128, 128);
    p.x[3][5] = bad;
    const Tensors got = p.run(fp8);
    EXPECT_TRUE(got[0].isnan().all().item<bool>());
    EXPECT_TRUE(got[2].isnan().all().item<bool>());
    Fp8History::end_of_step({fp8.history.get()});
    EXPECT_TRUE(at::equal(steps_of(fp8)[0], tensor_of({{2, 1}})[0]));
  }
}

class LinearFp8On : public testing::DeviceTest {};

// In bf16 beside the definition in f64; on a Hopper GPU tensor cores multiply the bytes.
TEST_P(LinearFp8On, Q8_21_EveryRecipeEqualsItsDefinition) {
  for (const Fp8Recipe recipe : {Fp8Recipe::kRow, Fp8Recipe::kTensor, Fp8Recipe::kBlock}) {
    LinearProduct p(300, 256, 384);
    for (at::Tensor* t : {&p.x, &p.w, &p.grad}) *t = t->to(at::kBFloat16).to(at::kFloat);
    const Tensors want = p.by_definition(/*exact=*/false, recipe);
    for (at::Tensor* t : {&p.x, &p.w, &p.grad}) *t = t->to(options(at::kBFloat16));
    const Tensors got = p.run({.recipe = recipe}), again = p.run({.recipe = recipe});
    for (int i = 0; i < 3; ++i) {
      EXPECT_LT(distance(got[i].cpu(), want[i]), 5e-3) << kProductNames[i] << to_text(recipe);
      EXPECT_TRUE(at::equal(got[i], again[i])) << kProductNames[i] << to_text(recipe);
    }
  }
}

TEST_P(LinearFp8On, Q8_21_DelayedEqualsItsDefinition) {
  LinearProduct p(300, 256, 384);
  for (at::Tensor* t : {&p.x, &p.w, &p.grad}) *t = t->to(at::kBFloat16).to(at::kFloat);
  const Tensors want = p.by_definition(/*exact=*/false, Fp8Recipe::kTensor, {.x = 1.5, .grad = 40});
  for (at::Tensor* t : {&p.x, &p.w, &p.grad}) *t = t->to(options(at::kBFloat16));
  const Fp8Options fp8 = delayed({{1.5, 1}, {3, 40}}, device());
  const Tensors got = p.run(fp8);
  for (int i = 0; i < 3; ++i) EXPECT_LT(distance(got[i].cpu(), want[i]), 5e-3) << kProductNames[i];
  EXPECT_EQ(Fp8History::end_of_step({fp8.history.get()}).item<int64_t>(), 1);
}

TROUPE_ON_DEVICES(LinearFp8On);

TEST(LinearFp8, RefusesARecipeThatItHasNot) {
  TROUPE_EXPECT_REFUSAL(fp8_recipe_of("mx", "linear_fp8"), "there are row, tensor and block");
  TROUPE_EXPECT_REFUSAL(fp8_recipe_of("delayed", "linear_fp8"), "which needs a history");
  TROUPE_EXPECT_REFUSAL(LinearProduct(4, 128, 128).run({.recipe = Fp8Recipe::kDelayed}),
                        "without Fp8Options::history");
}

// Section 12, test 2: one product of operands that are both rounded.
TEST(LinearFp8, Q8_TheErrorBesideUnroundedF64IsBounded) {
  const LinearProduct p(600, 256, 512);
  const Tensors got = p.run(), want = p.by_definition(/*exact=*/true);
  for (int i = 0; i < 3; ++i) {
    EXPECT_LT(distance(got[i], want[i]), 0.040) << kProductNames[i];
    EXPECT_GT(distance(got[i], want[i]), 0.02) << kProductNames[i] << ": nothing was rounded";
  }
  EXPECT_LT(distance(p.run({.weight_grad = false})[2], want[2]), 1e-5);
}

TEST(LinearFp8, Q8_2_GradientsTimesAPowerOfTwoAreTheSameBits) {
  LinearProduct p(40, 128, 192);
  const Tensors one = p.run();
  for (const int j : {-20, 20}) {
    LinearProduct other(40, 128, 192);
    other.grad = p.grad * std::ldexp(1.0, j);
    const Tensors scaled = other.run();
    for (int i = 1; i < 3; ++i) {
      EXPECT_TRUE(at::equal(scaled[i], one[i] * std::ldexp(1.0, j)))
          << kProductNames[i] << " x 2^" << j;
    }
  }
}

TEST(LinearFp8, Q8_3_ARowsBitsDependOnThatRowAlone) {
  const LinearProduct all(130, 128, 192);
  const Tensors want = all.run();
  for (const int64_t t : {0, 7, 129}) {
    LinearProduct alone = all;
    alone.x = all.x.detach().slice(0, t, t + 1).clone();
    alone.w = all.w.detach().clone();
    alone.grad = all.grad.slice(0, t, t + 1).clone();
    const Tensors got = alone.run();
    for (int i : {0, 1})
      EXPECT_TRUE(at::equal(got[i][0], want[i][t])) << kProductNames[i] << ' ' << t;
  }
}

TEST(LinearFp8, Q8_KeptWeightsAreTheSameBitsAndAreRoundedAnewAfterAWrite) {
  const LinearProduct p(40, 128, 192);
  Fp8Options kept;
  kept.kept = std::make_shared<Fp8Weights>();
  const Tensors want = p.run();
  for (int turn = 0; turn < 2; ++turn) {
    const Tensors got = p.run(kept);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << kProductNames[i] << turn;
  }
  {
    const at::NoGradGuard no_grad;
    p.w.mul_(2);
  }
  EXPECT_TRUE(at::equal(p.run(kept)[0], want[0] * 2));
}

// Rows in 8 bits for a weight gradient of them, unrounded ones for the other, and never both.
TEST(LinearFp8, BackwardIsLeftTheRowsThatItReads) {
  const LinearProduct p(40, 128, 192);
  for (const bool weight_grad : {true, false}) {
    const auto saved =
        linear_fp8_forward(p.x, p.w, {.options = {.weight_grad = weight_grad}}, /*keep=*/true)
            .saved;
    ASSERT_EQ(saved.size(), 5U);
    EXPECT_EQ(saved[0].defined(), weight_grad);
    EXPECT_EQ(saved[1].defined(), weight_grad);
    EXPECT_EQ(saved[4].defined(), !weight_grad);
  }
}

TEST(LinearFp8, RefusesSizesBelowAGroup) {
  const at::Tensor x = at::randn({4, 64});
  TROUPE_EXPECT_REFUSAL(linear_fp8(x, at::randn({128, 64}), {}), "must be at least 128");
  TROUPE_EXPECT_REFUSAL(linear_fp8(x, at::randn({128, 65}), {}), "w is [128, 65]");
}

}  // namespace
}  // namespace troupe
