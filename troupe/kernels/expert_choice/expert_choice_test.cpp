#include "troupe/kernels/expert_choice/expert_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;
using testing::Matrix;

struct Shape {
  int64_t tokens, experts;
};

struct Problem {
  explicit Problem(Shape s, const ExpertChoiceRule& r = {.rho = 2}, Dtype type = Dtype::kF32)
      : shape(s),
        rule(r),
        logits(type, s.tokens, s.experts, 2),
        weights(wide(type), s.tokens, s.experts),
        lse_squares(wide(type), 1, 1),
        grad_weights(wide(type), s.tokens, s.experts),
        grad_lse_squares(wide(type), 1, 1),
        grad_logits(type, s.tokens, s.experts, 2),
        valid(s.tokens),
        given(s.tokens * s.experts),
        ids(s.tokens * s.experts),
        counts(s.experts) {
    logits.fill_normal(7);
    grad_weights.fill_normal(8);
    grad_lse_squares.fill(0.02);
    for (size_t t = 0; t < valid.size(); ++t) valid[t] = t % 5 != 3;
  }
  ExpertChoice forward() {
    ExpertChoice a{.logits = logits.view(),
                   .rule = rule,
                   .valid = with_valid ? valid.data() : nullptr,
                   .given_ids = with_given ? given.data() : nullptr,
                   .ids = ids.data(),
                   .weights = weights.mut(),
                   .counts = counts.data(),
                   .lse_squares = lse_squares.mut()};
    workspace.emplace(workspace_bytes(a));
    a.workspace = workspace->data();
    return a;
  }
  ExpertChoiceBackward backward() {
    return {.logits = logits.view(),
            .rule = rule,
            .valid = with_valid ? valid.data() : nullptr,
            .ids = ids.data(),
            .grad_weights = grad_weights.view(),
            .grad_lse_squares = grad_lse_squares.view(),
            .grad_logits = grad_logits.mut()};
  }
  std::vector<int32_t> choices() { return {ids.data(), ids.data() + ids.size()}; }
  std::vector<int64_t> sizes() { return {counts.data(), counts.data() + counts.size()}; }

  Shape shape;
  ExpertChoiceRule rule;
  bool with_valid = false, with_given = false;
  Matrix logits, weights, lse_squares, grad_weights, grad_lse_squares, grad_logits;
  Buffer<uint8_t> valid;
  Buffer<int32_t> given, ids;
  Buffer<int64_t> counts;
  std::optional<Buffer<char>> workspace;
};

void forward(Backend backend, Problem& p) {
  testing::run(backend, p.forward(), expert_choice_cpu, TROUPE_CUDA_PATH(expert_choice_cuda));
}
void backward(Backend backend, Problem& p) {
  testing::run(backend, p.backward(), expert_choice_backward_cpu,
               TROUPE_CUDA_PATH(expert_choice_backward_cuda));
}

constexpr ExpertChoiceRule kRules[] = {{.rho = 1},
                                       {.score = Score::kSigmoid, .rho = 1.5},
                                       {.score = Score::kSqrtSoftplus, .rho = 2, .normalize = true},
                                       {.rho = 2, .normalize = true, .scale = 2.5f}};

struct Case {
  Backend backend;
  Dtype dtype;
  Shape shape;
};

class ExpertChoiceTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
    if (GetParam().backend == Backend::kCuda && GetParam().dtype == Dtype::kF64) {
      GTEST_SKIP() << "f64 is for the CPU";
    }
  }
  Backend backend() const { return GetParam().backend; }
  Problem problem(const ExpertChoiceRule& rule) const {
    return Problem(GetParam().shape, rule, GetParam().dtype);
  }
};

TEST_P(ExpertChoiceTest, R13_AgreesWithTheReference) {
  for (const ExpertChoiceRule& rule : kRules) {
    for (const bool masked : {false, true}) {
      Problem got = problem(rule), want = problem(rule);
      got.with_valid = want.with_valid = masked;
      forward(backend(), got);
      expert_choice_ref(want.forward());
      ASSERT_EQ(got.choices(), want.choices());
      EXPECT_EQ(got.sizes(), want.sizes());
      testing::expect_near(got.weights, want.weights, "weights");
      testing::expect_near(got.lse_squares, want.lse_squares, "lse_squares");
      backward(backend(), got);
      expert_choice_backward_ref(want.backward());
      testing::expect_near(got.grad_logits, want.grad_logits, "grad_logits");
    }
  }
}

TEST_P(ExpertChoiceTest, G4_EveryRunGivesTheSameBits) {
  Problem first = problem(kRules[3]), second = problem(kRules[3]);
  const Backend other = backend() == Backend::kCpuThreads ? Backend::kCpu : backend();
  forward(other, first);
  backward(other, first);
  forward(backend(), second);
  backward(backend(), second);
  EXPECT_EQ(first.choices(), second.choices());
  EXPECT_TRUE(first.weights.same_bits(second.weights));
  EXPECT_TRUE(first.lse_squares.same_bits(second.lse_squares));
  EXPECT_TRUE(first.grad_logits.same_bits(second.grad_logits));
}

TEST_P(ExpertChoiceTest, R13_EveryExpertTakesItsCapacity) {
  Problem p = problem({.rho = 1.3 * std::min<double>(1, GetParam().shape.experts / 2.0)});
  p.with_valid = true;
  forward(backend(), p);
  const int64_t n = std::count(p.valid.data(), p.valid.data() + p.valid.size(), 1);
  const int64_t C = expert_choice_capacity(p.rule.rho, n, p.shape.experts);
  EXPECT_EQ(p.sizes(), std::vector<int64_t>(p.shape.experts, C));
  for (int64_t e = 0; e < p.shape.experts; ++e) {
    int64_t taken = 0;
    for (int64_t t = 0; t < p.shape.tokens; ++t) taken += p.ids[t * p.shape.experts + e] == e;
    EXPECT_EQ(taken, C) << "expert " << e;
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (Dtype d : {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kF64}) {
      for (Shape s : {Shape{0, 8}, {1, 3}, {61, 7}, {1500, 32}, {97, 300}}) {
        cases.push_back({b, d, s});
      }
    }
  }
  return cases;
}
std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [backend, dtype, s] = info.param;
  return std::string(testing::name(backend)) + "_" + name(dtype) + "_t" + std::to_string(s.tokens) +
         "_e" + std::to_string(s.experts);
}
INSTANTIATE_TEST_SUITE_P(All, ExpertChoiceTest, ::testing::ValuesIn(all_cases()), case_name);

class ExpertChoiceRules : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }
  void run(Problem& p) { forward(GetParam(), p); }
};

TEST_P(ExpertChoiceRules, R13_HandExample) {
  Problem p({4, 2}, {.score = Score::kSigmoid, .rho = 1});
  const double logits[] = {3, 0, 2, 1, 1, 2, 0, -1};
  for (int64_t i = 0; i < 8; ++i) p.logits.set(i / 2, i % 2, logits[i]);
  run(p);
  // Each takes two: expert 0 tokens 0 and 1, expert 1 tokens 2 and 1; token 3 gets none.
  EXPECT_EQ(p.choices(), (std::vector<int32_t>{0, -1, 0, 1, -1, 1, -1, -1}));
  EXPECT_NEAR(p.weights.get(1, 1), 1 / (1 + std::exp(-1.0)), 1e-6);
  EXPECT_EQ(p.weights.get(3, 0), 0);
}

TEST_P(ExpertChoiceRules, R13_ShufflingTokensPermutesTheResult) {
  Problem p({200, 8}), shuffled({200, 8});
  const auto place = [](int64_t t) { return t * 77 % 200; };
  p.logits.each(
      [&](int64_t t, int64_t e) { shuffled.logits.set(place(t), e, p.logits.get(t, e)); });
  run(p);
  run(shuffled);
  for (int64_t t = 0; t < 200; ++t) {
    for (int64_t e = 0; e < 8; ++e) {
      EXPECT_EQ(p.ids[t * 8 + e], shuffled.ids[place(t) * 8 + e]);
      EXPECT_EQ(p.weights.get(t, e), shuffled.weights.get(place(t), e));
    }
  }
}

TEST_P(ExpertChoiceRules, G2_TiesGoToTheLowerToken) {
  Problem p({1000, 4}, {.rho = 1});
  p.logits.fill(0.5);
  run(p);
  for (int64_t t = 0; t < 1000; ++t) EXPECT_EQ(p.ids[t * 4 + 2] == 2, t < 250);
}

TEST_P(ExpertChoiceRules, G3_InvalidTokensAreNeverTaken) {
  Problem p({100, 4});
  p.with_valid = true;
  for (int64_t t = 3; t < 100; t += 5) {
    for (int64_t e = 0; e < 4; ++e) p.logits.set(t, e, 100);
  }
  run(p);
  backward(GetParam(), p);
  for (int64_t t = 3; t < 100; t += 5) {
    for (int64_t e = 0; e < 4; ++e) {
      EXPECT_EQ(p.ids[t * 4 + e], -1);
      EXPECT_EQ(p.weights.get(t, e), 0);
      EXPECT_EQ(p.grad_logits.get(t, e), 0);
    }
  }
}

TEST_P(ExpertChoiceRules, R15_ReplayGivesTheSameBits) {
  Problem first({150, 8}, kRules[3]), again({150, 8}, kRules[3]);
  run(first);
  again.with_given = true;
  std::copy_n(first.ids.data(), first.ids.size(), again.given.data());
  again.rule.rho = 0;  // Plays no part.
  run(again);
  EXPECT_EQ(first.choices(), again.choices());
  EXPECT_EQ(first.sizes(), again.sizes());
  EXPECT_TRUE(first.weights.same_bits(again.weights));
}

TEST_P(ExpertChoiceRules, R13_AllTokensWhenTheShareIsWhole) {
  Problem p({30, 3}, {.rho = 3, .normalize = true});
  run(p);
  EXPECT_EQ(p.sizes(), std::vector<int64_t>(3, 30));
  for (int64_t t = 0; t < 30; ++t) {
    EXPECT_NEAR(p.weights.get(t, 0) + p.weights.get(t, 1) + p.weights.get(t, 2), 1, 1e-6);
  }
}

TEST_P(ExpertChoiceRules, E12_BrokenRowsShow) {
  Problem p({20, 4}, {.rho = 4});
  p.logits.set(3, 1, NAN);
  p.logits.set(5, 2, INFINITY);
  run(p);
  for (int64_t t = 0; t < 20; ++t) {
    EXPECT_EQ(std::isnan(p.weights.get(t, 0)), t == 3 || t == 5) << "token " << t;
  }
  EXPECT_TRUE(std::isnan(p.lse_squares.get(0, 0)));
}

TEST_P(ExpertChoiceRules, E15_NoValidTokens) {
  Problem p({20, 4});
  p.with_valid = true;
  std::fill_n(p.valid.data(), 20, uint8_t{0});
  run(p);
  EXPECT_EQ(p.sizes(), std::vector<int64_t>(4));
  EXPECT_EQ(p.choices(), std::vector<int32_t>(80, -1));
  EXPECT_EQ(p.lse_squares.get(0, 0), 0);
}

INSTANTIATE_TEST_SUITE_P(All, ExpertChoiceRules,
                         ::testing::Values(Backend::kCpu, Backend::kCpuThreads, Backend::kCuda),
                         testing::backend_name);

double objective(Problem& p) {
  expert_choice_cpu(p.forward(), serial);
  double sum = p.grad_lse_squares.get(0, 0) * p.lse_squares.get(0, 0);
  p.weights.each(
      [&](int64_t t, int64_t e) { sum += p.grad_weights.get(t, e) * p.weights.get(t, e); });
  return sum;
}

TEST(ExpertChoiceBackward, R13_AgreesWithTheNumericGradient) {
  for (const ExpertChoiceRule& rule : kRules) {
    Problem p({14, 5}, rule, Dtype::kF64);
    p.with_valid = true;
    objective(p);
    expert_choice_backward_cpu(p.backward(), serial);
    constexpr double kStep = 1e-5;
    p.logits.each([&](int64_t t, int64_t e) {
      const double z = p.logits.get(t, e);
      p.logits.set(t, e, z + kStep);
      const double above = objective(p);
      p.logits.set(t, e, z - kStep);
      const double below = objective(p);
      p.logits.set(t, e, z);
      EXPECT_NEAR(p.grad_logits.get(t, e), (above - below) / (2 * kStep), 1e-8);
    });
  }
}

TEST(ExpertChoice, R13_CapacityRoundsUp) {
  EXPECT_EQ(expert_choice_capacity(1, 4, 2), 2);
  EXPECT_EQ(expert_choice_capacity(2, 7, 4), 4);
  EXPECT_EQ(expert_choice_capacity(1.1, 100, 10), 11);
  EXPECT_EQ(expert_choice_capacity(8, 7, 8), 7);
  EXPECT_EQ(expert_choice_capacity(2, 0, 8), 0);
}

TEST(ExpertChoice, RefusesBadArguments) {
  Problem p({6, 4}, {.rho = 4.5});
  EXPECT_THROW(expert_choice_cpu(p.forward(), serial), Error);
  Problem q({6, 4}, {.rho = -1});
  EXPECT_THROW(expert_choice_cpu(q.forward(), serial), Error);
  Problem r({6, 4});
  ExpertChoiceBackward b = r.backward();
  b.grad_weights.cols = 3;
  EXPECT_THROW(expert_choice_backward_cpu(b, serial), Error);
}

}  // namespace
}  // namespace troupe
