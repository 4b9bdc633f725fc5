#include "troupe/kernels/route/route.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "troupe/kernels/route/problem_test.h"

namespace troupe {
namespace {

using route_detail::RouteProblem;
using testing::Backend;
using Shape = RouteProblem::Shape;

constexpr double kInf = std::numeric_limits<double>::infinity();

void forward(Backend backend, RouteProblem& p) {
  testing::run(backend, p.forward(), route_cpu, TROUPE_CUDA_PATH(route_cuda));
}
void backward(Backend backend, RouteProblem& p) {
  testing::run(backend, p.backward(), route_backward_cpu, TROUPE_CUDA_PATH(route_backward_cuda));
}

template <class T>
std::vector<T> values(testing::Buffer<T>& b) {
  return {b.data(), b.data() + b.size()};
}

void expect_equal_integers(RouteProblem& got, RouteProblem& want, const std::string& what) {
  ASSERT_EQ(values(got.ids), values(want.ids)) << what;
  EXPECT_EQ(values(got.counts), values(want.counts)) << what;
  EXPECT_EQ(values(got.tokens), values(want.tokens)) << what;
  if (!want.with_sums) return;
  EXPECT_EQ(values(got.plain_counts), values(want.plain_counts)) << what;
}

void expect_near(RouteProblem& got, RouteProblem& want, const std::string& what) {
  expect_equal_integers(got, want, what);
  testing::expect_near(got.weights, want.weights, what + ": weights");
  testing::expect_near(got.lse, want.lse, what + ": lse");
  testing::expect_near(got.lse_squares, want.lse_squares, what + ": lse_squares");
  testing::expect_near(got.kept_scores, want.kept_scores, what + ": kept_scores");
  if (want.with_sums) testing::expect_near(got.probs, want.probs, what + ": probs");
}

bool same_bits(RouteProblem& a, RouteProblem& b) {
  return values(a.ids) == values(b.ids) && values(a.counts) == values(b.counts) &&
         values(a.plain_counts) == values(b.plain_counts) && a.weights.same_bits(b.weights) &&
         a.lse.same_bits(b.lse) && a.probs.same_bits(b.probs) &&
         a.lse_squares.same_bits(b.lse_squares) && a.kept_scores.same_bits(b.kept_scores) &&
         a.grad_logits.same_bits(b.grad_logits);
}

struct Named {
  const char* name;
  RouteRule rule;
  bool bias = false, beta = false;
};

// Every mode; what needs more choices or experts than there are is left out.
std::vector<Named> modes(int64_t choices, int64_t experts) {
  const bool several = choices > 1, divisible = experts % 4 == 0 && experts / 2 >= choices;
  std::vector<Named> all{
      {"R5", {.choices = choices}},
      {"R5 R8", {.choices = choices, .scale = 16}},
      {"R5 R7 q1", {.choices = choices, .weighting = Weighting::kNorm}},
      {"R5 R7 q2", {.choices = choices, .weighting = Weighting::kNorm, .norm = 2}},
      {"R6 sigmoid",
       {.choices = choices, .score = Score::kSigmoid, .weighting = Weighting::kSum, .scale = 2.5f},
       true},
      {"R6 sqrtsoftplus",
       {.choices = choices, .score = Score::kSqrtSoftplus, .weighting = Weighting::kSum},
       true},
      {"R6 raw", {.choices = choices, .score = Score::kSigmoid}},
      {"R6 R7 q3",
       {.choices = choices,
        .score = Score::kSqrtSoftplus,
        .weighting = Weighting::kNorm,
        .norm = 3}}};
  const RouteRule after{.choices = choices, .weighting = Weighting::kChosen};
  if (several) all.push_back({"R4", after});
  if (choices < experts) all.push_back({"R5 R11", {.choices = choices}, false, true});
  if (!divisible) return all;
  RouteRule grouped = all[4].rule;
  grouped.groups = 4;
  grouped.keep_groups = 2;
  grouped.group_best = std::min<int64_t>(2, experts / 4);
  all.push_back({"R6 R9", grouped, true});
  grouped.score = Score::kSoftmax;
  grouped.weighting = Weighting::kRaw;
  all.push_back({"R5 R9", grouped});
  grouped.weighting = Weighting::kChosen;
  if (several) all.push_back({"R4 R9", grouped});
  return all;
}

RouteProblem problem(Shape shape, const Named& mode, Dtype dtype = Dtype::kF32) {
  RouteProblem p(shape, mode.rule, dtype);
  p.with_bias = mode.bias;
  p.with_beta = mode.beta;
  return p;
}

struct Case {
  Backend backend;
  Dtype dtype;
  Shape shape;
  int64_t choices;
};

class RouteTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
    if (GetParam().backend == Backend::kCuda && GetParam().dtype == Dtype::kF64) {
      GTEST_SKIP() << "f64 is for the CPU";
    }
  }
  Backend backend() const { return GetParam().backend; }
  std::vector<Named> all_modes() const {
    return modes(GetParam().choices, GetParam().shape.experts);
  }
  RouteProblem problem_of(const Named& mode) const {
    return problem(GetParam().shape, mode, GetParam().dtype);
  }
};

TEST_P(RouteTest, R4_R5_R6_R7_R8_R9_R10_R11_AgreesWithTheReference) {
  for (const Named& mode : all_modes()) {
    for (const bool masked : {false, true}) {
      RouteProblem got = problem_of(mode), want = problem_of(mode);
      got.with_valid = want.with_valid = masked;
      forward(backend(), got);
      route_ref(want.forward());
      expect_near(got, want, std::string(mode.name) + (masked ? " masked" : ""));
    }
  }
}

TEST_P(RouteTest, BackwardAgreesWithTheReference) {
  for (const Named& mode : all_modes()) {
    for (const bool masked : {false, true}) {
      RouteProblem got = problem_of(mode), want = problem_of(mode);
      got.with_valid = want.with_valid = got.with_sums = want.with_sums = masked;
      route_ref(got.forward());
      route_ref(want.forward());
      backward(backend(), got);
      route_backward_ref(want.backward());
      testing::expect_near(got.grad_logits, want.grad_logits, mode.name);
    }
  }
}

TEST_P(RouteTest, L5_TheOnlyExpertsLogitHasExactlyNoGradient) {
  for (const Weighting weighting : {Weighting::kRaw, Weighting::kSum, Weighting::kChosen}) {
    RouteProblem p({300, 1, 3}, {.choices = 1, .weighting = weighting});
    p.grad_lse_squares.fill(0);
    forward(backend(), p);
    backward(backend(), p);
    p.grad_logits.each(
        [&](int64_t t, int64_t e) { EXPECT_EQ(p.grad_logits.get(t, e), 0) << "token " << t; });
  }
}

TEST_P(RouteTest, G4_EveryRunGivesTheSameBits) {
  for (const Named& mode : all_modes()) {
    RouteProblem first = problem_of(mode), second = problem_of(mode);
    // One thread against three: the CPU's results do not depend on the split.
    const Backend other = backend() == Backend::kCpuThreads ? Backend::kCpu : backend();
    forward(other, first);
    backward(other, first);
    forward(backend(), second);
    backward(backend(), second);
    EXPECT_TRUE(same_bits(first, second)) << mode.name;
  }
}

TEST_P(RouteTest, CountsEveryChoiceOnce) {
  for (const Named& mode : all_modes()) {
    RouteProblem p = problem_of(mode);
    forward(backend(), p);
    const int64_t slots = p.shape.tokens * p.rule.choices;
    EXPECT_EQ(std::accumulate(p.counts.data(), p.counts.data() + p.counts.size(), int64_t{0}),
              slots);
    const auto plain = values(p.plain_counts);
    EXPECT_EQ(std::accumulate(plain.begin(), plain.end(), int64_t{0}), slots);
    for (int64_t t = 0; t < p.shape.tokens; ++t) {
      const int32_t* row = p.ids.data() + t * p.rule.choices;
      const std::set<int32_t> ids(row, row + p.rule.choices);
      EXPECT_EQ(ids.size(), size_t(p.rule.choices)) << mode.name << " token " << t;
      EXPECT_TRUE(0 <= *ids.begin() && *ids.rbegin() < p.shape.experts);
    }
  }
}

constexpr Shape kSmall{64, 8, 2, 3};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  const std::vector<std::pair<Shape, int64_t>> sizes{
      {{0, 8, 1}, 2},     {{1, 3, 1}, 1},    {kSmall, 1},           {kSmall, 2},
      {kSmall, 8},        {{98, 60, 7}, 4},  {{257, 128, 1, 4}, 8}, {{100, 256, 2}, 8},
      {{7, 1000, 1}, 32}, {{5, 1028, 1}, 3}, {{6, 96, 2}, 40}};
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (Dtype d : {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kF64}) {
      for (const auto& [shape, choices] : sizes) cases.push_back({b, d, shape, choices});
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [backend, dtype, s, k] = info.param;
  return std::string(testing::name(backend)) + "_" + name(dtype) + "_t" + std::to_string(s.tokens) +
         "_e" + std::to_string(s.experts) + "_b" + std::to_string(s.sequences) + "_k" +
         std::to_string(k);
}
INSTANTIATE_TEST_SUITE_P(All, RouteTest, ::testing::ValuesIn(all_cases()), case_name);

class RouteRules : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }
  void run(RouteProblem& p) { forward(GetParam(), p); }
};

constexpr Score kScores[] = {Score::kSoftmax, Score::kSigmoid, Score::kSqrtSoftplus};

TEST_P(RouteRules, G2_TiesAndLastBitsAreOrderedExactly) {
  for (const Score score : kScores) {
    for (const bool grid : {true, false}) {
      RouteProblem got({4096, 64}, {.choices = 8, .score = score});
      std::mt19937 rng(3);
      got.logits.each([&](int64_t t, int64_t e) {
        const float near = std::nextafter(1.0f, rng() % 2 ? 2.0f : 0.0f);
        got.logits.set(t, e, grid ? static_cast<double>(rng() % 4) : rng() % 2 ? near : 1.0f);
      });
      RouteProblem want({4096, 64}, got.rule);
      want.logits.each([&](int64_t t, int64_t e) { want.logits.set(t, e, got.logits.get(t, e)); });
      run(got);
      route_ref(want.forward());
      expect_equal_integers(got, want, grid ? "grid" : "last bit");
    }
  }
}

TEST_P(RouteRules, G2_MinusZeroIsNoLessThanZero) {
  for (const int64_t choices : {3, 33}) {  // Both of CUDA's ranges.
    RouteProblem p({5, 40}, {.choices = choices});
    p.logits.each([&](int64_t t, int64_t e) { p.logits.set(t, e, e % 3 == 0 ? -0.0 : 0.0); });
    run(p);
    for (int64_t i = 0; i < 5 * choices; ++i) EXPECT_EQ(p.ids[i], i % choices) << "slot " << i;
  }
}

TEST_P(RouteRules, G3_InvalidTokensChangeNothing) {
  for (const Named& mode : modes(4, 16)) {
    RouteProblem masked = problem({120, 16}, mode);
    masked.with_valid = true;
    run(masked);
    const auto valid = values(masked.valid);
    RouteProblem dense = problem({std::count(valid.begin(), valid.end(), 1), 16}, mode);
    for (int64_t t = 0, row = 0; t < 120; ++t) {
      for (int64_t e = 0; valid[t] && e < 16; ++e) {
        dense.logits.set(row, e, masked.logits.get(t, e));
      }
      row += valid[t];
    }
    run(dense);
    for (int64_t t = 0, row = 0; t < 120; row += valid[t++]) {
      for (int64_t k = 0; k < 4; ++k) {
        const bool v = valid[t];
        EXPECT_EQ(masked.ids[t * 4 + k], v ? dense.ids[row * 4 + k] : -1);
        EXPECT_EQ(masked.weights.get(t, k), v ? dense.weights.get(row, k) : 0);
      }
    }
    EXPECT_EQ(values(masked.counts), values(dense.counts));
    EXPECT_EQ(values(masked.plain_counts), values(dense.plain_counts));
    testing::expect_near(masked.probs, dense.probs, mode.name);
    backward(GetParam(), masked);
    for (int64_t t = 0; t < 120; ++t) {
      for (int64_t e = 0; !valid[t] && e < 16; ++e) EXPECT_EQ(masked.grad_logits.get(t, e), 0);
    }
  }
}

TEST_P(RouteRules, E15_AllInvalidIsAsNoTokens) {
  RouteProblem p({40, 16, 2}, {.choices = 2});
  p.with_valid = true;
  std::fill_n(p.valid.data(), 40, uint8_t{0});
  run(p);
  EXPECT_EQ(values(p.counts), std::vector<int64_t>(16));
  EXPECT_EQ(values(p.plain_counts), std::vector<int64_t>(32));
  EXPECT_EQ(values(p.tokens), std::vector<int64_t>(2));
  p.probs.each([&](int64_t b, int64_t e) { EXPECT_EQ(p.probs.get(b, e), 0); });
  EXPECT_EQ(p.lse_squares.get(0, 0), 0);
}

TEST_P(RouteRules, E1_NoTokensGiveZeros) {
  RouteProblem p({0, 16, 3}, {.choices = 2});
  p.probs.fill(5);
  p.lse_squares.fill(5);
  std::fill_n(p.counts.data(), 16, 5);
  run(p);
  EXPECT_EQ(values(p.counts), std::vector<int64_t>(16));
  EXPECT_EQ(values(p.tokens), std::vector<int64_t>(3));
  p.probs.each([&](int64_t b, int64_t e) { EXPECT_EQ(p.probs.get(b, e), 0); });
  EXPECT_EQ(p.lse_squares.get(0, 0), 0);
  backward(GetParam(), p);
}

TEST_P(RouteRules, R4_IsR5WithR7OfOne) {
  RouteProblem after({200, 32}, {.choices = 4, .weighting = Weighting::kChosen});
  RouteProblem before({200, 32}, {.choices = 4, .weighting = Weighting::kNorm, .norm = 1});
  run(after);
  run(before);
  EXPECT_EQ(values(after.ids), values(before.ids));
  testing::expect_near(after.weights, before.weights);
}

TEST_P(RouteRules, R7_NormsAreOne) {
  for (const float q : {1.0f, 2.0f, 3.5f}) {
    RouteProblem p(
        {50, 16},
        {.choices = 5, .score = Score::kSigmoid, .weighting = Weighting::kNorm, .norm = q});
    run(p);
    for (int64_t t = 0; t < 50; ++t) {
      double sum = 0;
      for (int64_t k = 0; k < 5; ++k) sum += std::pow(p.weights.get(t, k), q);
      EXPECT_NEAR(sum, 1, 1e-5) << "q " << q;
    }
  }
}

TEST_P(RouteRules, R7_ZeroRowGivesZeros) {
  RouteProblem p(
      {3, 4},
      {.choices = 2, .score = Score::kSqrtSoftplus, .weighting = Weighting::kNorm, .norm = 2});
  p.logits.fill(-1000);
  run(p);
  backward(GetParam(), p);
  p.weights.each([&](int64_t t, int64_t k) { EXPECT_EQ(p.weights.get(t, k), 0); });
  p.grad_logits.each(
      [&](int64_t t, int64_t e) { EXPECT_TRUE(std::isfinite(p.grad_logits.get(t, e))); });
}

TEST_P(RouteRules, R9_ChoosesInAtMostKeptGroups) {
  const int64_t sizes[][2] = {{8, 3}, {8, 4}, {4, 2}};
  for (const Score score : kScores) {
    for (const auto& [groups, keep] : sizes) {
      RouteProblem p(
          {300, 64},
          {.choices = 6, .score = score, .groups = groups, .keep_groups = keep, .group_best = 2});
      run(p);
      for (int64_t t = 0; t < 300; ++t) {
        std::set<int64_t> used;
        for (int64_t k = 0; k < 6; ++k) used.insert(p.ids[t * 6 + k] / (64 / groups));
        EXPECT_LE(static_cast<int64_t>(used.size()), keep);
      }
    }
  }
}

TEST_P(RouteRules, R9_EveryExpertItsOwnGroupIsThePlainChoice) {
  for (const Score score : kScores) {
    RouteProblem plain({300, 32}, {.choices = 6, .score = score});
    RouteProblem p({300, 32}, {.choices = 6, .score = score, .groups = 32, .keep_groups = 6});
    run(plain);
    run(p);
    EXPECT_EQ(values(p.ids), values(plain.ids));
    EXPECT_EQ(values(p.plain_counts), values(plain.counts));
  }
}

TEST_P(RouteRules, R9_NegativeSelectionScoresChangeNothing) {
  const RouteRule rule{.choices = 4,
                       .score = Score::kSigmoid,
                       .weighting = Weighting::kSum,
                       .groups = 8,
                       .keep_groups = 2,
                       .group_best = 2};
  RouteProblem zero({200, 64}, rule), minus({200, 64}, rule);
  zero.with_bias = minus.with_bias = true;
  for (RouteProblem* p : {&zero, &minus}) {  // On a grid that survives the shift.
    p->logits.each([&](int64_t t, int64_t e) {
      p->logits.set(t, e, static_cast<double>((t * 131 + e * 71) % 97) / 16 - 3);
    });
  }
  std::fill_n(zero.shift.data(), 64, 0.0f);
  std::fill_n(minus.shift.data(), 64, -5.0f);
  run(zero);
  run(minus);
  EXPECT_EQ(values(zero.ids), values(minus.ids));
}

TEST_P(RouteRules, R10_BiasNeverEntersTheWeights) {
  const RouteRule rule{.choices = 3, .score = Score::kSigmoid, .weighting = Weighting::kSum};
  RouteProblem without({100, 16}, rule), with({100, 16}, rule);
  with.with_bias = true;
  std::fill_n(with.shift.data(), 16, 0.25f);  // Equal for all: chooses the same.
  run(without);
  run(with);
  EXPECT_EQ(values(without.ids), values(with.ids));
  EXPECT_TRUE(without.weights.same_bits(with.weights));
}

TEST_P(RouteRules, R10_BiasMovesTheChoiceButNotTheLoss) {
  const RouteRule rule{.choices = 2, .score = Score::kSigmoid, .weighting = Weighting::kSum};
  RouteProblem without({100, 16}, rule), with({100, 16}, rule);
  with.with_bias = true;
  std::fill_n(with.shift.data(), 16, 0.0f);
  with.shift[5] = 10;
  run(without);
  run(with);
  EXPECT_EQ(with.counts[5], 100);
  EXPECT_EQ(values(with.plain_counts), values(without.counts));
  EXPECT_TRUE(without.probs.same_bits(with.probs));
}

TEST_P(RouteRules, R11_BetaIsTakenFromTheLogits) {
  RouteProblem p({100, 16}, {.choices = 2, .score = Score::kSigmoid, .weighting = Weighting::kSum});
  p.with_beta = true;
  std::fill_n(p.shift.data(), 16, 0.0f);
  p.shift[3] = -1000;
  p.shift[4] = 1000;
  run(p);
  EXPECT_EQ(p.counts[3], 100);
  EXPECT_EQ(p.counts[4], 0);
}

TEST_P(RouteRules, R15_ReplayGivesTheSameWeights) {
  for (const Named& mode : modes(4, 16)) {
    RouteProblem first = problem({90, 16}, mode);
    run(first);
    RouteRule ungrouped = mode.rule;
    ungrouped.groups = 1;
    RouteProblem again({90, 16}, ungrouped);
    again.with_given = true;
    std::copy_n(first.ids.data(), first.ids.size(), again.given.data());
    run(again);
    EXPECT_EQ(values(first.ids), values(again.ids)) << mode.name;
    EXPECT_EQ(values(first.plain_counts), values(again.plain_counts)) << mode.name;
    EXPECT_TRUE(first.weights.same_bits(again.weights)) << mode.name;
  }
}

TEST_P(RouteRules, R3_UniformKeepsTheTrueWeights) {
  RouteProblem p({64, 8}, {.choices = 2});
  p.with_given = true;
  for (int64_t i = 0; i < 128; ++i) p.given[i] = static_cast<int32_t>(i % 8);
  run(p);
  EXPECT_EQ(values(p.counts), std::vector<int64_t>(8, 16));
  for (int64_t t = 0; t < 64; ++t) {
    double sum = 0;
    for (int64_t e = 0; e < 8; ++e) sum += std::exp(p.logits.get(t, e));
    for (int64_t k = 0; k < 2; ++k) {
      EXPECT_NEAR(p.weights.get(t, k), std::exp(p.logits.get(t, (2 * t + k) % 8)) / sum, 1e-6);
    }
  }
}

TEST_P(RouteRules, E22_FaultyGivenIdsShowAsNan) {
  for (const int64_t choices : {3, 33}) {  // Both of CUDA's ranges.
    RouteProblem p({3, 40}, {.choices = choices});
    p.with_given = true;
    for (int64_t i = 0; i < 3 * choices; ++i) p.given[i] = static_cast<int32_t>(i % choices);
    p.given[choices + 1] = p.given[choices + 2];
    p.given[2 * choices] = 40;
    run(p);
    for (int64_t k = 0; k < choices; ++k) {
      EXPECT_FALSE(std::isnan(p.weights.get(0, k)));
      EXPECT_TRUE(std::isnan(p.weights.get(1, k)));
      EXPECT_TRUE(std::isnan(p.weights.get(2, k)));
    }
    EXPECT_EQ(p.ids[2 * choices], -1);
  }
}

TEST_P(RouteRules, E12_BrokenRowsKeepDistinctIdsAndShow) {
  for (const Named& mode : modes(3, 8)) {
    RouteProblem p = problem({4, 8}, mode);
    p.logits.set(0, 2, NAN);
    p.logits.set(1, 5, kInf);
    for (int64_t e = 0; e < 8; ++e) p.logits.set(2, e, NAN);
    run(p);
    for (int64_t t = 0; t < 4; ++t) {
      const std::set<int32_t> ids(p.ids.data() + 3 * t, p.ids.data() + 3 * t + 3);
      EXPECT_EQ(ids.size(), 3u) << mode.name;
      EXPECT_TRUE(0 <= *ids.begin() && *ids.rbegin() < 8) << mode.name;
      for (int64_t k = 0; k < 3; ++k) EXPECT_EQ(std::isnan(p.weights.get(t, k)), t < 3);
    }
    EXPECT_TRUE(std::isnan(p.probs.get(0, 0))) << mode.name;
    EXPECT_TRUE(std::isnan(p.lse_squares.get(0, 0))) << mode.name;
  }
}

TEST_P(RouteRules, RanksMinusInfinityLast) {
  RouteProblem p({1, 4}, {.choices = 3});
  const double logits[] = {-kInf, 0, -kInf, -kInf};
  for (int64_t e = 0; e < 4; ++e) p.logits.set(0, e, logits[e]);
  run(p);
  EXPECT_EQ(values(p.ids), (std::vector<int32_t>{1, 0, 2}));
  EXPECT_EQ(p.weights.get(0, 0), 1);
  EXPECT_EQ(p.weights.get(0, 1), 0);
}

TEST_P(RouteRules, E13_EqualLogitsChooseTheFirst) {
  for (const Score score : kScores) {
    RouteProblem p({64, 24}, {.choices = 3, .score = score});
    p.logits.fill(1.5);
    run(p);
    for (int64_t i = 0; i < 64 * 3; ++i) EXPECT_EQ(p.ids[i], i % 3);
    double balance = 0;  // LB = E / (k N^2) sum c P
    for (int64_t e = 0; e < 24; ++e) balance += p.plain_counts[e] * p.probs.get(0, e);
    EXPECT_NEAR(balance * 24 / (3 * 64.0 * 64.0), 1, 1e-6);
  }
}

TEST_P(RouteRules, E14_LargeLogitsStayFinite) {
  for (const Named& mode : modes(4, 16)) {
    RouteProblem got = problem({64, 16}, mode, Dtype::kBF16);
    got.logits.fill_normal(5, 5000);
    got.logits.set(0, 0, 1e4);
    got.logits.set(0, 1, -1e4);
    RouteProblem want = problem({64, 16}, mode, Dtype::kBF16);
    want.logits.each([&](int64_t t, int64_t e) { want.logits.set(t, e, got.logits.get(t, e)); });
    run(got);
    route_ref(want.forward());
    expect_near(got, want, mode.name);
    got.weights.each(
        [&](int64_t t, int64_t k) { EXPECT_TRUE(std::isfinite(got.weights.get(t, k))); });
  }
}

TEST_P(RouteRules, E5_AllExpertsChosenIsTheFullSoftmax) {
  RouteProblem p({64, 8}, {.choices = 8, .weighting = Weighting::kChosen});
  run(p);
  EXPECT_EQ(values(p.counts), std::vector<int64_t>(8, 64));
  for (int64_t t = 0; t < 64; ++t) {
    double sum = 0;
    for (int64_t k = 0; k < 8; ++k) sum += p.weights.get(t, k);
    EXPECT_NEAR(sum, 1, 1e-6);
  }
}

TEST_P(RouteRules, L5_OneExpertHasWeightExactlyOne) {
  for (const Weighting w : {Weighting::kChosen, Weighting::kRaw, Weighting::kNorm}) {
    RouteProblem p({70, 1}, {.choices = 1, .weighting = w});
    run(p);
    p.weights.each([&](int64_t t, int64_t k) { EXPECT_EQ(p.weights.get(t, k), 1); });
    EXPECT_EQ(p.counts[0], 70);
  }
}

TEST_P(RouteRules, E8_SeventyThousandExperts) {
  RouteProblem got({3, 70000}, {.choices = 5,
                                .score = Score::kSigmoid,
                                .weighting = Weighting::kSum,
                                .groups = 70,
                                .keep_groups = 3,
                                .group_best = 2});
  RouteProblem want({3, 70000}, got.rule);
  run(got);
  route_ref(want.forward());
  expect_near(got, want, "forward");
  backward(GetParam(), got);
  route_backward_ref(want.backward());
  testing::expect_near(got.grad_logits, want.grad_logits, "backward");
}

TEST_P(RouteRules, A2_SequencesAreSummedApart) {
  RouteProblem both({150, 16, 2}, {.choices = 3, .score = Score::kSigmoid});
  both.with_valid = true;
  run(both);
  for (int64_t b = 0; b < 2; ++b) {
    RouteProblem one({75, 16}, both.rule);
    one.with_valid = true;
    one.logits.each(
        [&](int64_t t, int64_t e) { one.logits.set(t, e, both.logits.get(75 * b + t, e)); });
    std::copy_n(both.valid.data() + 75 * b, 75, one.valid.data());
    run(one);
    EXPECT_EQ(both.tokens[b], one.tokens[0]);
    for (int64_t e = 0; e < 16; ++e) {
      EXPECT_EQ(both.plain_counts[b * 16 + e], one.plain_counts[e]);
      EXPECT_EQ(both.probs.get(b, e), one.probs.get(0, e));
    }
  }
}

TEST_P(RouteRules, A6_ZeroLogitsGiveTheLogOfExperts) {
  RouteProblem p({10, 32}, {.choices = 2});
  p.logits.fill(0);
  run(p);
  EXPECT_NEAR(p.lse_squares.get(0, 0) / 10, std::log(32.0) * std::log(32.0), 1e-5);
}

TEST_P(RouteRules, WithoutSumsNothingElseChanges) {
  for (const Named& mode : modes(4, 16)) {
    RouteProblem with = problem({90, 16}, mode), without = problem({90, 16}, mode);
    without.with_sums = false;
    run(with);
    run(without);
    EXPECT_EQ(values(with.ids), values(without.ids));
    EXPECT_EQ(values(with.counts), values(without.counts));
    EXPECT_TRUE(with.weights.same_bits(without.weights));
  }
}

INSTANTIATE_TEST_SUITE_P(All, RouteRules,
                         ::testing::Values(Backend::kCpu, Backend::kCpuThreads, Backend::kCuda),
                         testing::backend_name);

// The scalar that grad_logits is the gradient of.
double objective(RouteProblem& p) {
  route_cpu(p.forward(), serial);
  double sum = p.grad_lse_squares.get(0, 0) * p.lse_squares.get(0, 0);
  p.weights.each(
      [&](int64_t t, int64_t k) { sum += p.grad_weights.get(t, k) * p.weights.get(t, k); });
  p.probs.each([&](int64_t b, int64_t e) { sum += p.grad_probs.get(b, e) * p.probs.get(b, e); });
  return sum;
}

TEST(RouteBackward, R4_R5_R6_R7_R8_AgreesWithTheNumericGradient) {
  for (const int64_t choices : {1, 2, 8}) {
    for (const Named& mode : modes(choices, 8)) {
      RouteProblem p = problem({12, 8, 2}, mode, Dtype::kF64);
      p.with_valid = true;
      objective(p);
      route_backward_cpu(p.backward(), serial);
      constexpr double kStep = 1e-5;
      p.logits.each([&](int64_t t, int64_t e) {
        const double z = p.logits.get(t, e);
        p.logits.set(t, e, z + kStep);
        const double above = objective(p);
        p.logits.set(t, e, z - kStep);
        const double below = objective(p);
        p.logits.set(t, e, z);
        EXPECT_NEAR(p.grad_logits.get(t, e), (above - below) / (2 * kStep), 2e-8) << mode.name;
      });
    }
  }
}

TEST(RouteBackward, R4_OnlyTheChosenHaveGradient) {
  RouteProblem p({20, 16}, {.choices = 3, .weighting = Weighting::kChosen});
  p.with_sums = false;
  route_cpu(p.forward(), serial);
  route_backward_cpu(p.backward(), serial);
  for (int64_t t = 0; t < 20; ++t) {
    const std::set<int32_t> chosen(p.ids.data() + 3 * t, p.ids.data() + 3 * t + 3);
    for (int64_t e = 0; e < 16; ++e) {
      EXPECT_EQ(p.grad_logits.get(t, e) == 0, chosen.count(static_cast<int32_t>(e)) == 0);
    }
  }
}

void expect_refused(const RouteRule& rule, int64_t experts, const std::string& says) {
  try {
    validate(rule, experts);
    FAIL() << "accepted: " << says;
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(says), std::string::npos) << e.what();
  }
}

TEST(RouteRule, E6_RefusesMoreChoicesThanExperts) {
  expect_refused({.choices = 9}, 8, "top_k 9 of 8");
  expect_refused({.choices = 0}, 8, "top_k 0 of 8");
  expect_refused({.choices = 1}, 0, "experts 0");
}
TEST(RouteRule, R4_RefusesOneChoice) {
  expect_refused({.choices = 1, .weighting = Weighting::kChosen}, 8, "(R5) or sigmoid scores (R6)");
}
TEST(RouteRule, R9_RefusesImpossibleGroups) {
  expect_refused({.choices = 2, .groups = 3}, 8, "groups 3 of 8");
  expect_refused({.choices = 2, .groups = 4, .keep_groups = 5}, 8, "keep 5 of 4");
  expect_refused({.choices = 3, .groups = 4, .keep_groups = 1}, 8, "keep_groups 1 of 2");
  expect_refused({.choices = 2, .groups = 4, .keep_groups = 2, .group_best = 0}, 8, "group_best 0");
  expect_refused({.choices = 2, .groups = 4, .keep_groups = 2, .group_best = 3}, 8, "group_best 3");
}
TEST(RouteRule, R7_RefusesANormBelowOne) {
  expect_refused({.choices = 2, .weighting = Weighting::kNorm, .norm = 0.5f}, 8, "norm 0.5");
}

TEST(Route, RefusesWhatExcludesEachOther) {
  RouteProblem p({6, 8}, {.choices = 2});
  p.with_bias = true;
  EXPECT_THROW(route_cpu(p.forward(), serial), Error) << "a bias of softmax scores";
  RouteProblem q({6, 8}, {.choices = 8, .score = Score::kSigmoid});
  q.with_beta = true;
  EXPECT_THROW(route_cpu(q.forward(), serial), Error) << "R11 with k = E";
  q.rule.choices = 2;
  RouteProblem r({6, 8}, q.rule);
  r.with_given = r.with_beta = true;
  EXPECT_THROW(route_cpu(r.forward(), serial), Error);
  RouteProblem s({6, 8, 4}, q.rule);
  EXPECT_THROW(route_cpu(s.forward(), serial), Error) << "6 tokens in 4 sequences";
  RouteProblem t({6, 8}, q.rule);
  RouteBackward b = t.backward();
  b.grad_weights.cols = 3;
  EXPECT_THROW(route_backward_cpu(b, serial), Error);
}

}  // namespace
}  // namespace troupe
