#include "troupe/kernels/jitter/jitter.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Matrix;

struct Shape {
  int64_t rows, cols, pad = 0;
};
struct Case {
  Backend backend;
  Dtype dtype;
  Shape shape;
};

constexpr NoiseKey kKey{.seed = 5, .step = 7, .layer = 2};

Jitter jitter_args(Matrix& x, Matrix& out, float epsilon = 0.1f) {
  return {.x = x.view(),
          .epsilon = epsilon,
          .rng = noise_rng("router_jitter", kKey),
          .token = {.first_token = 1000},
          .out = out.mut()};
}
NormalNoise noise_args(Matrix& out, float std = 2) {
  return {.std = std,
          .rng = noise_rng("router_random", kKey),
          .token = {.first_token = 9},
          .out = out.mut()};
}
void run(Backend b, const Jitter& a) {
  testing::run(b, a, jitter_cpu, TROUPE_CUDA_PATH(jitter_cuda));
}
void run(Backend b, const NormalNoise& a) {
  testing::run(b, a, normal_noise_cpu, TROUPE_CUDA_PATH(normal_noise_cuda));
}

class JitterTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
    if (GetParam().backend == Backend::kCuda && GetParam().dtype == Dtype::kF64) {
      GTEST_SKIP() << "f64 is for the CPU";
    }
  }
  Matrix matrix() const {
    const Shape& s = GetParam().shape;
    return {GetParam().dtype, s.rows, s.cols, s.pad};
  }
};

TEST_P(JitterTest, R2_AgreesWithTheReference) {
  Matrix x = matrix(), got = matrix(), want = matrix();
  x.fill_normal(1);
  run(GetParam().backend, jitter_args(x, got));
  jitter_ref(jitter_args(x, want));
  testing::expect_near(got, want);
}

TEST_P(JitterTest, R3_NormalNoiseIsTheSameBitsEverywhere) {
  Matrix got = matrix(), want = matrix();
  run(GetParam().backend, noise_args(got));
  normal_noise_ref(noise_args(want));
  EXPECT_TRUE(got.same_bits(want));
}

TEST_P(JitterTest, G4_EveryRunGivesTheSameBits) {
  Matrix x = matrix(), first = matrix(), second = matrix();
  x.fill_normal(1);
  run(Backend::kCpu, jitter_args(x, first));  // The CPU's bits are CUDA's, and any thread's.
  run(GetParam().backend, jitter_args(x, second));
  EXPECT_TRUE(first.same_bits(second));
}

TEST_P(JitterTest, MayWriteOverItsInput) {
  Matrix x = matrix(), want = matrix();
  x.fill_normal(1);
  run(GetParam().backend, jitter_args(x, want));
  run(GetParam().backend, jitter_args(x, x));
  EXPECT_TRUE(x.same_bits(want));
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (Dtype d : {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kF64}) {
      for (Shape s :
           {Shape{0, 8}, {3, 0}, {1, 1}, {7, 13, 2}, {61, 128}, {300, 520, 8}, {3, 2051}}) {
        cases.push_back({b, d, s});
      }
    }
  }
  return cases;
}
std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const auto& [backend, dtype, s] = info.param;
  return std::string(testing::name(backend)) + "_" + name(dtype) + "_" + std::to_string(s.rows) +
         "x" + std::to_string(s.cols);
}
INSTANTIATE_TEST_SUITE_P(All, JitterTest, ::testing::ValuesIn(all_cases()), case_name);

TEST(Jitter, R2_RatioIsUniformInItsRange) {
  Matrix x(Dtype::kF64, 400, 256), out(Dtype::kF64, 400, 256);
  x.fill(1);
  jitter_cpu(jitter_args(x, out, 0.25f), serial);
  double sum = 0, squares = 0;
  out.each([&](int64_t t, int64_t d) {
    const double u = out.get(t, d);
    EXPECT_TRUE(0.75 <= u && u <= 1.25) << u;
    sum += u;
    squares += (u - 1) * (u - 1);
  });
  const double n = 400 * 256;
  EXPECT_NEAR(sum / n, 1, 4 * 0.25 / std::sqrt(3 * n));
  EXPECT_NEAR(squares / n, 0.25 * 0.25 / 3, 4e-4);
}

TEST(Jitter, R2_ZeroEpsilonChangesNothing) {
  Matrix x(Dtype::kF32, 40, 30), out(Dtype::kF32, 40, 30);
  x.fill_normal(1);
  jitter_cpu(jitter_args(x, out, 0), serial);
  EXPECT_TRUE(out.same_bits(x));
}

TEST(Jitter, R2_NoiseFollowsTheGlobalToken) {
  Matrix x(Dtype::kF32, 40, 30), whole(Dtype::kF32, 40, 30), part(Dtype::kF32, 40, 30);
  x.fill_normal(1);
  jitter_cpu(jitter_args(x, whole), serial);
  for (int64_t begin : {0, 13}) {  // Two ranks, 13 and 27 tokens.
    const int64_t rows = begin == 0 ? 13 : 27;
    Jitter a = jitter_args(x, part);
    a.x = {x.view().as<float>().row(begin), Dtype::kF32, rows, 30, 30};
    a.out = {part.mut().as<float>().row(begin), Dtype::kF32, rows, 30, 30};
    a.token.first_token += begin;
    jitter_cpu(a, serial);
  }
  EXPECT_TRUE(part.same_bits(whole));
}

TEST_P(JitterTest, MF13_AnIndexNamesEachRowsToken) {
  Matrix x = matrix(), whole = matrix(), got = matrix(), noise = matrix(), got_noise = matrix();
  const int64_t rows = GetParam().shape.rows;
  if (GetParam().backend == Backend::kCuda) GTEST_SKIP() << "the index is the operator's to bring";
  x.fill(1);
  jitter_ref(jitter_args(x, whole));
  normal_noise_ref(noise_args(noise));
  std::vector<int64_t> index, noise_index;  // the rows turned round
  for (int64_t t = rows; t-- > 0;) {
    index.push_back(1000 + t);
    noise_index.push_back(9 + t);
  }
  Jitter a = jitter_args(x, got);
  a.token = {.index = index.data()};
  run(GetParam().backend, a);
  NormalNoise n = noise_args(got_noise);
  n.token = {.index = noise_index.data()};
  run(GetParam().backend, n);
  got.each([&](int64_t t, int64_t d) {
    ASSERT_EQ(got.get(t, d), whole.get(rows - 1 - t, d));
    ASSERT_EQ(got_noise.get(t, d), noise.get(rows - 1 - t, d));
  });
}

TEST(Jitter, R2_StepsLayersAndPurposesDiffer) {
  const Rng base = noise_rng("a", {1, 2, 3});
  const auto word = [](const Rng& r) { return r.bits(0).w[0]; };
  for (const Rng& other :
       {noise_rng("b", {1, 2, 3}), noise_rng("a", {2, 2, 3}), noise_rng("a", {1, 3, 3}),
        noise_rng("a", {1, 2, 4}), noise_rng("a", {1, 3, 2})}) {
    EXPECT_NE(word(base), word(other));
  }
  EXPECT_EQ(word(base), word(noise_rng("a", {1, 2, 3})));
}

TEST(NormalNoise, R3_HasMeanZeroAndItsDeviation) {
  Matrix out(Dtype::kF64, 500, 200);
  normal_noise_cpu(noise_args(out, 3), serial);
  double sum = 0, squares = 0;
  out.each([&](int64_t t, int64_t e) {
    sum += out.get(t, e);
    squares += out.get(t, e) * out.get(t, e);
  });
  const double n = 500 * 200;
  EXPECT_NEAR(sum / n, 0, 4 * 3 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 9, 4 * 9 * std::sqrt(2 / n));
}

TEST(Jitter, RefusesBadArguments) {
  Matrix x(Dtype::kF32, 4, 4), out(Dtype::kF32, 4, 5), half(Dtype::kBF16, 4, 4);
  EXPECT_THROW(jitter_cpu(jitter_args(x, out), serial), Error);
  EXPECT_THROW(jitter_cpu(jitter_args(x, half), serial), Error);
  EXPECT_THROW(jitter_cpu(jitter_args(x, x, 1), serial), Error);
  EXPECT_THROW(jitter_cpu(jitter_args(x, x, -0.1f), serial), Error);
  EXPECT_THROW(normal_noise_cpu(noise_args(x, -1), serial), Error);
}

}  // namespace
}  // namespace troupe
