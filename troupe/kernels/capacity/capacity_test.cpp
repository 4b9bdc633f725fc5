#include "troupe/kernels/capacity/capacity.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "troupe/testing/matrix.h"
#include "troupe/testing/routed_rows.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;
using testing::RoutedRows;
using testing::RoutedShape;

TEST(Capacity, C2_CeilingForgivesTheLastBits) {
  EXPECT_EQ(capacity({.factor = 1}, 8, 2, 4), 4);
  EXPECT_EQ(capacity({.factor = 1.25}, 8, 2, 4), 5);
  EXPECT_EQ(capacity({.factor = 0.5}, 8, 2, 4), 2);
  EXPECT_EQ(capacity({.factor = 1.1}, 100, 1, 10), 11);
  EXPECT_EQ(capacity({.factor = 1.1}, 100, 1, 7), 16);  // 15.71
  EXPECT_EQ(capacity({.factor = 0.01}, 8, 1, 64), 1);
  EXPECT_EQ(capacity({.factor = 0.01, .minimum = 4}, 8, 1, 64), 4);
  EXPECT_EQ(capacity({.factor = 0.01, .minimum = 9}, 8, 1, 64), 8);
}

TEST(Capacity, C3_NothingDropsWithoutAFactorOrWithALargeOne) {
  EXPECT_EQ(capacity({.factor = 0}, 17, 2, 4), 17);
  EXPECT_EQ(capacity({.factor = 4}, 17, 2, 8), 17);
  EXPECT_EQ(capacity({.factor = 1e30}, 17, 2, 8), 17);
  EXPECT_EQ(capacity({.factor = 1}, 0, 2, 8), 0);
}

TEST(Capacity, RefusesNonsense) {
  EXPECT_THROW(capacity({.factor = -1}, 8, 1, 1), Error);
  EXPECT_THROW(capacity({.factor = NAN}, 8, 1, 1), Error);
  EXPECT_THROW(capacity({.factor = 1, .minimum = -1}, 8, 1, 1), Error);
  EXPECT_THROW(capacity({.factor = 1}, 8, 1, 0), Error);
}

struct Problem {
  explicit Problem(const RoutedShape& shape)
      : rows(shape),
        T(shape.tokens),
        K(shape.choices),
        weights(T * K + 1),
        kept_weights(T * K + 1),
        grad(T * K + 1),
        grad_weights(T * K + 1),
        kept_ids(T * K + 1),
        dropped(1),
        workspace(1),
        valid(T + 1) {
    testing::fill_normal(weights, 3);
    for (size_t i = 0; i < weights.size(); ++i) {
      weights[i] = std::floor(std::abs(weights[i]) * 8) / 8;  // A grid: many ties, some zeros.
    }
    testing::fill_normal(grad, 4);
    std::fill_n(kept_ids.data(), kept_ids.size(), -77);
    std::fill_n(kept_weights.data(), kept_weights.size(), NAN);
    std::fill_n(grad_weights.data(), grad_weights.size(), NAN);
    std::fill_n(valid.data(), valid.size(), uint8_t{1});
  }
  DropOverCapacity args(CapacityRule rule, DropPolicy policy, bool renormalize = false) {
    return {.plan = rows.read<PlanRef>(),
            .ids = rows.ids.data(),
            .weights = {weights.data(), Dtype::kF32, T, K, K},
            .valid = valid.data(),
            .rule = rule,
            .policy = policy,
            .renormalize = renormalize,
            .kept_ids = kept_ids.data(),
            .kept_weights = {kept_weights.data(), Dtype::kF32, T, K, K},
            .dropped = dropped.data(),
            .workspace = workspace.data()};
  }
  DropOverCapacityBackward backward(bool renormalize) {
    return {.experts = rows.shape.experts,
            .ids = rows.ids.data(),
            .kept_ids = kept_ids.data(),
            .weights = {weights.data(), Dtype::kF32, T, K, K},
            .grad_kept_weights = {grad.data(), Dtype::kF32, T, K, K},
            .renormalize = renormalize,
            .grad_weights = {grad_weights.data(), Dtype::kF32, T, K, K}};
  }
  RoutedRows rows;
  int64_t T, K;
  Buffer<float> weights, kept_weights, grad, grad_weights;
  Buffer<int32_t> kept_ids;
  Buffer<int64_t> dropped, workspace;
  Buffer<uint8_t> valid;
};

void run(Backend backend, const DropOverCapacity& args) {
  testing::run(backend, args, drop_over_capacity_cpu, TROUPE_CUDA_PATH(drop_over_capacity_cuda));
}

void run(Backend backend, const DropOverCapacityBackward& args) {
  testing::run(backend, args, drop_over_capacity_backward_cpu,
               TROUPE_CUDA_PATH(drop_over_capacity_backward_cuda));
}

void expect_near(float got, float want, const char* what, int64_t i) {
  ASSERT_NEAR(got, want, 1e-6 * (1 + std::abs(want))) << what << " at " << i;
}

constexpr CapacityRule kRules[] = {{}, {.factor = 0.5}, {.factor = 1}, {.factor = 1e-9}};

struct Case {
  Backend backend;
  RoutedShape shape;
};

class DropOverCapacityTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
  }
};

TEST_P(DropOverCapacityTest, C4_KeptSetIsThatOfTheReference) {
  for (const CapacityRule& rule : kRules) {
    for (DropPolicy policy : {DropPolicy::kProbs, DropPolicy::kPosition}) {
      for (bool renormalize : {false, true}) {
        Problem want(GetParam().shape), got(GetParam().shape);
        drop_over_capacity_ref(want.args(rule, policy, renormalize));
        drop_over_capacity_backward_ref(want.backward(renormalize));
        run(GetParam().backend, got.args(rule, policy, renormalize));
        run(GetParam().backend, got.backward(renormalize));
        EXPECT_EQ(got.dropped[0], want.dropped[0]);
        for (int64_t s = 0; s < want.T * want.K; ++s) {
          ASSERT_EQ(got.kept_ids[s], want.kept_ids[s]) << "slot " << s;
          expect_near(got.kept_weights[s], want.kept_weights[s], "weight", s);
          expect_near(got.grad_weights[s], want.grad_weights[s], "gradient", s);
        }
      }
    }
  }
}

// Needs no reference: no expert above C, none that was full dropped a better slot than it kept.
TEST_P(DropOverCapacityTest, C4_NoExpertKeepsAWorseSlotThanItDrops) {
  Problem p(GetParam().shape);
  const CapacityRule rule{.factor = 0.5};
  run(GetParam().backend, p.args(rule, DropPolicy::kProbs));
  const int64_t E = p.rows.shape.experts, C = capacity(rule, p.T, p.K, E);
  int64_t dropped = 0;
  for (int64_t e = 0; e < E; ++e) {
    int64_t kept = 0;
    float worst_kept = INFINITY, best_dropped = -INFINITY;
    for (int64_t s = 0; s < p.T * p.K; ++s) {
      if (p.rows.ids[s] != e) continue;
      const bool keeps = p.kept_ids[s] >= 0;
      kept += keeps;
      (keeps ? worst_kept : best_dropped) =
          keeps ? std::min(worst_kept, p.weights[s]) : std::max(best_dropped, p.weights[s]);
    }
    EXPECT_EQ(kept, std::min(C, p.rows.counts[e])) << "expert " << e;
    EXPECT_GE(worst_kept, best_dropped) << "expert " << e;
    dropped += p.rows.counts[e] - kept;
  }
  EXPECT_EQ(p.dropped[0], dropped);
}

TEST_P(DropOverCapacityTest, G4_TenRunsAreBitwiseEqual) {
  Problem first(GetParam().shape);
  run(GetParam().backend, first.args({.factor = 0.7}, DropPolicy::kProbs, true));
  for (int i = 0; i < 10; ++i) {
    Problem again(GetParam().shape);
    run(GetParam().backend, again.args({.factor = 0.7}, DropPolicy::kProbs, true));
    for (int64_t s = 0; s < first.T * first.K; ++s) {
      ASSERT_EQ(again.kept_ids[s], first.kept_ids[s]);
      ASSERT_EQ(again.kept_weights[s], first.kept_weights[s]);
    }
  }
}

constexpr RoutedShape kShapes[] = {
    {.tokens = 0, .choices = 2, .experts = 3},
    {.tokens = 1, .choices = 1, .experts = 1},
    {.tokens = 127, .choices = 2, .experts = 5, .masked = 0.2},
    {.tokens = 130, .choices = 8, .experts = 8, .alignment = 16},
    {.tokens = 601, .choices = 4, .experts = 60},
    {.tokens = 3001, .choices = 1, .experts = 4, .masked = 0.1, .all_to_first = true},
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (const RoutedShape& s : kShapes) cases.push_back({b, s});
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [backend, s] = info.param;
  return std::string(name(backend)) + "_t" + std::to_string(s.tokens) + "_k" +
         std::to_string(s.choices) + "_e" + std::to_string(s.experts);
}
INSTANTIATE_TEST_SUITE_P(All, DropOverCapacityTest, ::testing::ValuesIn(all_cases()), case_name);

class DropOverCapacityCase : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }
};

// Five tokens to one expert of two; C = 2.
TEST_P(DropOverCapacityCase, C4_TiesGoToTheLowerTokenAndNanGoesLast) {
  Problem p({.tokens = 5, .choices = 1, .experts = 2, .all_to_first = true});
  const float weights[] = {NAN, 0.5f, 0.75f, 0.5f, 0.5f};
  std::copy(std::begin(weights), std::end(weights), p.weights.data());
  run(GetParam(), p.args({.factor = 0.8}, DropPolicy::kProbs));
  EXPECT_EQ(std::vector<int32_t>(p.kept_ids.data(), p.kept_ids.data() + 5),
            (std::vector<int32_t>{-1, 0, 0, -1, -1}));
  run(GetParam(), p.args({.factor = 0.8}, DropPolicy::kPosition));
  EXPECT_EQ(std::vector<int32_t>(p.kept_ids.data(), p.kept_ids.data() + 5),
            (std::vector<int32_t>{0, 0, -1, -1, -1}));
  EXPECT_EQ(p.dropped[0], 3);
}

TEST_P(DropOverCapacityCase, C2_CountsValidTokensOnly) {
  Problem p({.tokens = 8, .choices = 1, .experts = 2, .all_to_first = true});
  for (int t = 4; t < 8; ++t) p.valid[t] = 0;
  for (int t = 0; t < 8; ++t) p.weights[t] = 1.0f;
  run(GetParam(), p.args({.factor = 1}, DropPolicy::kProbs));
  EXPECT_EQ(p.dropped[0], 6);  // C = 4 / 2, not 8 / 2.
}

TEST_P(DropOverCapacityCase, C5_DroppedWeightsAndTheirGradientsAreExactlyZero) {
  Problem p(kShapes[4]);
  run(GetParam(), p.args({.factor = 0.5}, DropPolicy::kProbs));
  run(GetParam(), p.backward(false));
  ASSERT_GT(p.dropped[0], 0);
  for (int64_t s = 0; s < p.T * p.K; ++s) {
    const bool kept = p.kept_ids[s] >= 0;
    ASSERT_EQ(p.kept_weights[s], kept ? p.weights[s] : 0.0f) << "slot " << s;
    ASSERT_EQ(p.grad_weights[s], kept ? p.grad[s] : 0.0f) << "slot " << s;
  }
}

TEST_P(DropOverCapacityCase, C5_RenormalizeKeepsTheTokensSum) {
  Problem p({.tokens = 3, .choices = 2, .experts = 3});
  const int32_t ids[] = {0, 1, 0, 2, 0, 1};
  p.rows = RoutedRows(p.rows.shape, std::vector<int32_t>(std::begin(ids), std::end(ids)));
  const float weights[] = {0.25f, 0.75f, 0.5f, 0.25f, 0.125f, 0.5f};
  std::copy(std::begin(weights), std::end(weights), p.weights.data());
  run(GetParam(), p.args({.factor = 1}, DropPolicy::kProbs, true));  // C = 2: slot 4 is dropped.
  const float want[] = {0.25f, 0.75f, 0.5f, 0.25f, 0.0f, 0.625f};
  for (int s = 0; s < 6; ++s) EXPECT_EQ(p.kept_weights[s], want[s]) << "slot " << s;
}
std::string backend_name(const ::testing::TestParamInfo<Backend>& info) {
  return name(info.param);
}
INSTANTIATE_TEST_SUITE_P(All, DropOverCapacityCase,
                         ::testing::Values(Backend::kCpu, Backend::kCpuThreads, Backend::kCuda),
                         backend_name);

// Central differences in double, through the CPU path.
TEST(DropOverCapacity, GradientIsThatOfTheNumericJacobian) {
  const RoutedShape shape{.tokens = 7, .choices = 3, .experts = 4, .masked = 0.2};
  RoutedRows rows(shape);
  const int64_t n = 21;
  Buffer<double> w(n), out(n), g(n), grad(n);
  Buffer<int32_t> kept(n);
  Buffer<int64_t> dropped(1);
  testing::fill_normal(w, 5);
  testing::fill_normal(g, 6);
  for (int64_t i = 0; i < n; ++i) w[i] = 0.1 + std::abs(w[i]);
  for (bool renormalize : {false, true}) {
    const DropOverCapacity args{.plan = rows.read<PlanRef>(),
                                .ids = rows.ids.data(),
                                .weights = {w.data(), Dtype::kF64, 7, 3, 3},
                                .rule = {.factor = 0.6},
                                .renormalize = renormalize,
                                .kept_ids = kept.data(),
                                .kept_weights = {out.data(), Dtype::kF64, 7, 3, 3},
                                .dropped = dropped.data()};
    drop_over_capacity_cpu(args, serial);
    EXPECT_GT(dropped[0], 0);
    drop_over_capacity_backward_cpu({.experts = 4,
                                     .ids = rows.ids.data(),
                                     .kept_ids = kept.data(),
                                     .weights = args.weights,
                                     .grad_kept_weights = {g.data(), Dtype::kF64, 7, 3, 3},
                                     .renormalize = renormalize,
                                     .grad_weights = {grad.data(), Dtype::kF64, 7, 3, 3}},
                                    serial);
    const auto loss = [&](int64_t i, double step) {
      const double before = w[i];
      w[i] += step;
      drop_over_capacity_cpu(args, serial);
      w[i] = before;
      double sum = 0;
      for (int64_t s = 0; s < n; ++s) sum += g[s] * out[s];
      return sum;
    };
    for (int64_t i = 0; i < n; ++i) {
      const double numeric = (loss(i, 1e-6) - loss(i, -1e-6)) / 2e-6;
      EXPECT_NEAR(grad[i], numeric, 1e-8) << "slot " << i << " renormalize " << renormalize;
    }
  }
}

TEST(DropOverCapacity, RefusesWeightsOfTheWrongShapeOrType) {
  Problem p(kShapes[2]);
  DropOverCapacity args = p.args({.factor = 1}, DropPolicy::kProbs);
  args.weights.cols = 1;
  EXPECT_THROW(drop_over_capacity_cpu(args, serial), Error);
  args = p.args({.factor = 1}, DropPolicy::kProbs);
  args.weights.dtype = args.kept_weights.dtype = Dtype::kBF16;
  EXPECT_THROW(drop_over_capacity_cpu(args, serial), Error);
}

}  // namespace
}  // namespace troupe
