#include "troupe/kernels/quantile/quantile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
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
  int64_t tokens, experts, choices;
};

struct Problem {
  explicit Problem(Shape s, Dtype type = Dtype::kF32)
      : shape(s),
        logits(type, s.tokens, s.experts, 1),
        beta(s.experts),
        next(s.experts),
        valid(s.tokens) {
    logits.fill_normal(7);
    testing::fill_normal(beta, 8);
    for (size_t t = 0; t < valid.size(); ++t) valid[t] = t % 5 != 3;
  }
  Quantile args() {
    Quantile a{.logits = logits.view(),
               .choices = shape.choices,
               .beta = beta.data(),
               .valid = with_valid ? valid.data() : nullptr,
               .next = next.data()};
    workspace.emplace(workspace_bytes(a));
    a.workspace = workspace->data();
    return a;
  }
  std::vector<float> result() { return {next.data(), next.data() + next.size()}; }

  Shape shape;
  bool with_valid = false;
  Matrix logits;
  Buffer<float> beta, next;
  Buffer<uint8_t> valid;
  std::optional<Buffer<char>> workspace;
};

void run(Backend backend, Problem& p) {
  testing::run(backend, p.args(), quantile_cpu, TROUPE_CUDA_PATH(quantile_cuda));
}

struct Case {
  Backend backend;
  Dtype dtype;
  Shape shape;
};

class QuantileTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
    if (GetParam().backend == Backend::kCuda && GetParam().dtype == Dtype::kF64) {
      GTEST_SKIP() << "f64 is for the CPU";
    }
  }
};

// Order statistics are elements: equal, not near.
TEST_P(QuantileTest, R11_IsTheReferenceExactly) {
  for (const bool masked : {false, true}) {
    Problem got(GetParam().shape, GetParam().dtype), want(GetParam().shape, GetParam().dtype);
    got.with_valid = want.with_valid = masked;
    run(GetParam().backend, got);
    quantile_ref(want.args());
    EXPECT_EQ(got.result(), want.result()) << (masked ? "masked" : "");
  }
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (Dtype d : {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kF64}) {
      for (Shape s : {Shape{0, 8, 2}, {1, 3, 2}, {61, 7, 3}, {1500, 64, 8}, {97, 300, 9}}) {
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
INSTANTIATE_TEST_SUITE_P(All, QuantileTest, ::testing::ValuesIn(all_cases()), case_name);

class QuantileRules : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }
  void run(Problem& p) { troupe::run(GetParam(), p); }
};

// How often each expert is among the K largest of z - beta.
std::vector<int64_t> counts_of(Problem& p) {
  std::vector<int64_t> counts(p.shape.experts);
  for (int64_t t = 0; t < p.shape.tokens; ++t) {
    std::vector<int64_t> order(p.shape.experts);
    std::iota(order.begin(), order.end(), 0);
    std::partial_sort(order.begin(), order.begin() + p.shape.choices, order.end(),
                      [&](int64_t i, int64_t j) {
                        return p.logits.get(t, i) - p.beta[i] > p.logits.get(t, j) - p.beta[j];
                      });
    for (int64_t k = 0; k < p.shape.choices; ++k) ++counts[order[k]];
  }
  return counts;
}

TEST_P(QuantileRules, R11_FiftyUpdatesBalanceFixedLogits) {
  Problem p({4096, 16, 4});
  p.logits.each([&](int64_t t, int64_t e) {
    p.logits.set(t, e, p.logits.get(t, e) + static_cast<double>(e % 5));
  });
  std::fill_n(p.beta.data(), 16, 0.0f);
  constexpr float kEma = 0.5f;
  for (int step = 0; step < 50; ++step) {
    run(p);
    float mean = 0;
    for (int e = 0; e < 16; ++e) {
      p.beta[e] = kEma * p.beta[e] + (1 - kEma) * p.next[e];
      mean += p.beta[e] / 16;
    }
    for (int e = 0; e < 16; ++e) p.beta[e] -= mean;
  }
  const std::vector<int64_t> counts = counts_of(p);
  EXPECT_LE(*std::max_element(counts.begin(), counts.end()), 4096 * 4 / 16.0 * 1.01);
}

TEST_P(QuantileRules, R11_MayWriteOverBeta) {
  Problem p({300, 16, 4}), in_place({300, 16, 4});
  run(p);
  Quantile a = in_place.args();
  a.next = in_place.beta.data();
  testing::run(GetParam(), a, quantile_cpu, TROUPE_CUDA_PATH(quantile_cuda));
  EXPECT_EQ(p.result(), std::vector<float>(in_place.beta.data(), in_place.beta.data() + 16));
}

TEST_P(QuantileRules, E15_NoValidTokenKeepsBeta) {
  Problem p({40, 16, 4});
  p.with_valid = true;
  std::fill_n(p.valid.data(), 40, uint8_t{0});
  run(p);
  EXPECT_EQ(p.result(), std::vector<float>(p.beta.data(), p.beta.data() + 16));
}

TEST_P(QuantileRules, E12_BrokenRowsTakeNoPart) {
  Problem p({50, 8, 2}), without({50, 8, 2});
  without.with_valid = true;
  std::fill_n(without.valid.data(), 50, uint8_t{1});
  without.valid[7] = 0;
  for (int64_t e = 0; e < 8; ++e) p.logits.set(7, e, NAN);
  run(p);
  run(without);
  EXPECT_EQ(p.result(), without.result());
}

TEST_P(QuantileRules, E13_EqualLogitsGiveTheirDifference) {
  Problem p({64, 8, 2});
  p.logits.fill(3);
  std::fill_n(p.beta.data(), 8, 0.0f);
  run(p);
  EXPECT_EQ(p.result(), std::vector<float>(8, 0.0f));
}

INSTANTIATE_TEST_SUITE_P(All, QuantileRules,
                         ::testing::Values(Backend::kCpu, Backend::kCpuThreads, Backend::kCuda),
                         testing::backend_name);

TEST(Quantile, E5_RefusesAsManyChoicesAsExperts) {
  Problem p({8, 4, 4});
  EXPECT_THROW(quantile_cpu(p.args(), serial), Error);
  p.shape.choices = 0;
  EXPECT_THROW(quantile_cpu(p.args(), serial), Error);
}

}  // namespace
}  // namespace troupe
