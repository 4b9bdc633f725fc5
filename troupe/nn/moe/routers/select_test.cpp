#include "troupe/nn/moe/routers/select.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using Row = std::vector<double>;

Row row_of(const at::Tensor& x, int64_t t) {
  const at::Tensor r = x[t].to(at::kDouble).contiguous();
  return {r.const_data_ptr<double>(), r.const_data_ptr<double>() + r.numel()};
}

// Section 2.2 by plain loops.
Row score_row(const Row& z, RouterScore score) {
  Row s(z.size());
  const double top = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (size_t e = 0; e < z.size(); ++e) {
    const double soft = std::max(z[e], 0.0) + std::log1p(std::exp(-std::abs(z[e])));
    s[e] = score == RouterScore::kSoftmax   ? std::exp(z[e] - top)
           : score == RouterScore::kSigmoid ? 1 / (1 + std::exp(-z[e]))
                                            : std::sqrt(soft);
    sum += s[e];
  }
  if (score == RouterScore::kSoftmax) {
    for (double& x : s) x /= sum;
  }
  return s;
}

std::vector<int> top_of(const Row& by, int64_t k) {
  std::vector<int> order(by.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return by[a] > by[b]; });
  order.resize(k);
  return order;
}

// Section 2.3 by plain loops: the weights of the chosen experts.
Row weigh_row(const Row& z, const Row& s, const std::vector<int>& ids, const SelectOptions& o) {
  Row w;
  for (const int e : ids) w.push_back(s[e]);
  double norm = 1;
  if (o.weighting == RouterWeighting::kChosen) {
    Row chosen;
    for (const int e : ids) chosen.push_back(z[e]);
    w = score_row(chosen, RouterScore::kSoftmax);
  } else if (o.weighting == RouterWeighting::kSum && w.size() > 1) {
    norm = std::accumulate(w.begin(), w.end(), 1e-20);
  } else if (o.weighting == RouterWeighting::kNorm) {
    double sum = 0;
    for (const double x : w) sum += std::pow(x, o.p_norm);
    norm = std::pow(sum, 1 / o.p_norm);
  }
  for (double& x : w) x = norm == 0 ? 0 : x / norm * o.scale;
  return w;
}

std::vector<SelectOptions> modes() {
  using enum RouterScore;
  using enum RouterWeighting;
  std::vector<SelectOptions> out;
  for (const int64_t k : {1, 2, 8}) {
    if (k > 1) out.push_back({.top_k = k, .weighting = kChosen});
    out.push_back({.top_k = k, .weighting = kRaw});
    out.push_back({.top_k = k, .weighting = kNorm, .p_norm = 1});
    out.push_back({.top_k = k, .weighting = kNorm, .p_norm = 2, .scale = 2.5});
    for (const RouterScore s : {kSigmoid, kSqrtSoftplus}) {
      out.push_back({.top_k = k, .score = s, .weighting = kSum, .scale = 2.5});
    }
  }
  return out;
}

TEST(Select, R4_R5_R6_R7_R8_AgreeWithTheFormulas) {
  const at::Tensor z = at::randn({64, 8});
  for (const SelectOptions& o : modes()) {
    const RouterOutput out = select(z, {}, o);
    for (int64_t t = 0; t < 64; ++t) {
      const Row row = row_of(z, t), s = score_row(row, o.score);
      const std::vector<int> ids = top_of(row, o.top_k);
      const Row want = weigh_row(row, s, ids, o), got = row_of(out.weights_TK, t);
      for (int64_t k = 0; k < o.top_k; ++k) {
        EXPECT_EQ(out.ids_TK[t][k].item<int>(), ids[k]);
        EXPECT_NEAR(got[k], want[k], 1e-6 * o.scale);
      }
    }
  }
}

TEST(Select, R4_R5_R6_R7_R8_GradientsAgreeWithTheJacobian) {
  for (const SelectOptions& o : modes()) {
    testing::expect_gradients(
        [&](const testing::Tensors& z) { return select(z[0], {}, o).weights_TK; },
        {at::randn({5, 8}, at::kDouble).requires_grad_()}, 1e-7);
  }
}

TEST(Select, A1_A6_SumsHaveTheirGradients) {
  const at::Tensor valid = at::tensor({1, 0, 1, 1, 1, 1}, at::kInt).to(at::kBool);
  for (const RouterScore s : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
    const SelectOptions o{.top_k = 2, .score = s};
    const Tokens tokens{.valid_T = valid, .sequences = 2};
    testing::expect_gradients(
        [&](const testing::Tensors& z) { return select(z[0], tokens, o).balance.probs_BE; },
        {at::randn({6, 5}, at::kDouble).requires_grad_()}, 1e-7);
    testing::expect_gradients(
        [&](const testing::Tensors& z) { return select(z[0], tokens, o).balance.lse_squares; },
        {at::randn({6, 5}, at::kDouble).requires_grad_()}, 1e-7);
  }
}

TEST(Select, R4_EqualsR5FollowedByR7) {
  const at::Tensor z = at::randn({64, 8}, at::kDouble);
  const at::Tensor a =
      select(z, {}, {.top_k = 3, .weighting = RouterWeighting::kChosen}).weights_TK;
  const at::Tensor b =
      select(z, {}, {.top_k = 3, .weighting = RouterWeighting::kNorm, .p_norm = 1}).weights_TK;
  EXPECT_LT((a - b).abs().max().item<double>(), 1e-12);
}

TEST(Select, R7_ARowOfZerosGivesZeros) {
  const at::Tensor z = at::full({2, 4}, -2000.0);
  const at::Tensor w = select(z, {},
                              {.top_k = 2,
                               .score = RouterScore::kSigmoid,
                               .weighting = RouterWeighting::kNorm,
                               .p_norm = 2})
                           .weights_TK;
  EXPECT_TRUE(w.eq(0).all().item<bool>());
}

TEST(Select, R6_ReportsTheSumOfTheChosenScores) {
  const RouterOutput out =
      select(at::zeros({3, 4}), {.valid_T = at::tensor({1, 1, 0}, at::kInt).to(at::kBool)},
             {.top_k = 2, .score = RouterScore::kSigmoid, .weighting = RouterWeighting::kSum});
  EXPECT_NEAR(out.score_sum.item<double>(), 1.0, 1e-6);
}

TEST(Select, G2_TiesGoToTheLowerExpertAndOneBitDecides) {
  const at::Tensor z = at::randint(0, 4, {4096, 64}).to(at::kFloat);
  const RouterOutput out = select(z, {}, {.top_k = 8, .weighting = RouterWeighting::kChosen});
  for (int64_t t = 0; t < 4096; t += 61) {
    const std::vector<int> want = top_of(row_of(z, t), 8);
    for (int64_t k = 0; k < 8; ++k) ASSERT_EQ(out.ids_TK[t][k].item<int>(), want[k]);
  }
  at::Tensor close = at::full({1, 8}, 1.0f);
  close[0][5] = std::nextafter(1.0f, 2.0f);
  EXPECT_EQ(select(close, {}, {.top_k = 2}).ids_TK[0][0].item<int>(), 5);
}

TEST(Select, G3_InvalidTokensAreInNothing) {
  const at::Tensor valid = at::rand({40}).gt(0.4), keep = valid.nonzero().select(1, 0);
  const at::Tensor z = at::randn({40, 8}, at::kDouble).requires_grad_();
  const SelectOptions o{.top_k = 2};
  const RouterOutput out = select(z, {.valid_T = valid}, o);
  const RouterOutput alone = select(z.detach().index_select(0, keep), {}, o);
  EXPECT_TRUE(out.counts_E.equal(alone.counts_E));
  EXPECT_TRUE(out.balance.counts_BE.equal(alone.balance.counts_BE));
  EXPECT_LT((out.balance.probs_BE - alone.balance.probs_BE).abs().max().item<double>(), 1e-12);
  EXPECT_NEAR(out.balance.lse_squares.item<double>(), alone.balance.lse_squares.item<double>(),
              1e-10);
  EXPECT_EQ(out.balance.tokens_B.item<int64_t>(), keep.numel());
  const at::Tensor dead = valid.logical_not().nonzero().select(1, 0);
  EXPECT_TRUE(out.ids_TK.index_select(0, dead).eq(-1).all().item<bool>());
  (out.weights_TK.sum() + out.balance.probs_BE.square().sum() + out.balance.lse_squares).backward();
  EXPECT_TRUE(z.grad().index_select(0, dead).eq(0).all().item<bool>());
}

TEST(Select, R9_ChoicesLieInTheKeptGroups) {
  for (const auto& [g, a] : {std::pair{8, 3}, std::pair{8, 4}, std::pair{4, 2}}) {
    const at::Tensor z = at::randn({100, 32});
    const SelectOptions o{.top_k = 6, .limit = {.groups = g, .keep = a}};
    const RouterOutput out = select(z, {}, o);
    EXPECT_LE(touched_groups(out.ids_TK, 32, g).sum().item<int64_t>(), 100 * a);
    EXPECT_TRUE(out.ids_TK.ge(0).all().item<bool>());
  }
  const at::Tensor z = at::randn({50, 8});
  EXPECT_TRUE(select(z, {}, {.top_k = 3, .limit = {.groups = 8, .keep = 3}})
                  .ids_TK.equal(select(z, {}, {.top_k = 3}).ids_TK));
}

TEST(Select, R9_ANegativeBiasExcludesNoKeptGroup) {
  const at::Tensor z = at::randn({100, 16});
  SelectOptions o{.top_k = 4,
                  .score = RouterScore::kSigmoid,
                  .weighting = RouterWeighting::kSum,
                  .limit = {.groups = 4, .keep = 2, .top = 2}};
  const RouterOutput plain = select(z, {}, o);
  o.bias_E = at::full({16}, -5.0f);
  const RouterOutput moved = select(z, {}, o);
  EXPECT_EQ(moved.ids_TK.ne(plain.ids_TK).sum().item<int64_t>(), 0);
  EXPECT_TRUE(moved.weights_TK.equal(plain.weights_TK));
}

TEST(Select, R10_TheBiasChoosesAndNeverWeighs) {
  const at::Tensor z = at::randn({20, 4});
  SelectOptions o{.top_k = 2, .score = RouterScore::kSigmoid, .weighting = RouterWeighting::kSum};
  o.bias_E = at::tensor({0.0f, 10.0f, 0.0f, 0.0f});
  const RouterOutput out = select(z, {}, o);
  EXPECT_TRUE(out.ids_TK.select(1, 0).eq(1).all().item<bool>());
  SelectOptions same = o;
  same.bias_E = at::Tensor();
  same.given_ids_TK = out.ids_TK;
  EXPECT_TRUE(select(z, {}, same).weights_TK.equal(out.weights_TK));
  EXPECT_FALSE(
      out.balance.counts_BE[0].equal(out.counts_E));  // the losses' counts are without bias
}

TEST(Select, R15_GivenChoicesAreTakenAndWeighed) {
  const at::Tensor z = at::randn({30, 8});
  const SelectOptions o{.top_k = 3, .weighting = RouterWeighting::kChosen};
  const RouterOutput first = select(z, {}, o);
  SelectOptions again = o;
  again.given_ids_TK = first.ids_TK;
  const RouterOutput out = select(z, {}, again);
  EXPECT_TRUE(out.ids_TK.equal(first.ids_TK));
  EXPECT_TRUE(out.weights_TK.equal(first.weights_TK));
  EXPECT_EQ(out.counts_E.sum().item<int64_t>(), 90);
}

TEST(Select, E1_NoTokens) {
  const RouterOutput out = select(at::zeros({0, 4}).requires_grad_(), {}, {.top_k = 2});
  EXPECT_EQ(out.ids_TK.sizes(), (at::IntArrayRef{0, 2}));
  EXPECT_EQ(out.counts_E.sum().item<int64_t>(), 0);
  (out.weights_TK.sum() + out.balance.lse_squares).backward();
}

TEST(Select, E5_AllExpertsChosen) {
  const at::Tensor z = at::randn({10, 8}, at::kDouble);
  const RouterOutput out = select(z, {}, {.top_k = 8, .weighting = RouterWeighting::kChosen});
  EXPECT_TRUE(out.counts_E.eq(10).all().item<bool>());
  EXPECT_LT((out.weights_TK - z.softmax(1).gather(1, out.ids_TK.to(at::kLong)))
                .abs()
                .max()
                .item<double>(),
            1e-12);
}

TEST(Select, E12_ANaNLogitKeepsIdsInRange) {
  at::Tensor z = at::randn({3, 4});
  z[1][2] = std::numeric_limits<float>::quiet_NaN();
  const RouterOutput out = select(z, {}, {.top_k = 2, .weighting = RouterWeighting::kChosen});
  EXPECT_TRUE(out.ids_TK.ge(0).logical_and(out.ids_TK.lt(4)).all().item<bool>());
  EXPECT_TRUE(out.weights_TK[1].isnan().any().item<bool>());
  EXPECT_FALSE(out.weights_TK[0].isnan().any().item<bool>());
}

TEST(Select, E13_EqualLogitsChooseTheFirstAndBalance) {
  const RouterOutput out = select(at::zeros({6, 5}), {}, {.top_k = 3});
  for (int64_t k = 0; k < 3; ++k) EXPECT_TRUE(out.ids_TK.select(1, k).eq(k).all().item<bool>());
  const at::Tensor f = fractions(out.balance.counts_BE, out.balance.tokens_B, 3);
  EXPECT_NEAR(load_balance(f, out.balance.probs_BE, out.balance.tokens_B).item<double>(), 1, 1e-6);
}

TEST(Select, E14_LargeLogitsStayFinite) {
  const at::Tensor z = at::randn({10, 8}).sign() * 1e4 + at::arange(8);
  for (const SelectOptions& o : modes()) {
    const RouterOutput out = select(z, {}, o);
    EXPECT_TRUE(out.weights_TK.isfinite().all().item<bool>());
    EXPECT_TRUE(out.balance.lse_squares.isfinite().all().item<bool>());
  }
}

}  // namespace
}  // namespace troupe
