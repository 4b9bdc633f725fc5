#include "troupe/kernels/grad_norm/grad_norm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;
using testing::Matrix;

struct Case {
  Backend backend;
  Dtype dtype;
  int64_t size;
};

struct Problem {
  Problem(int64_t n, Dtype d) : x(d, 1, n), out(1), workspace(1) {
    workspace = Buffer<char>(workspace_bytes(args()));
    x.fill_normal(1);
    out[0] = 77;
  }
  SumSquares args() { return {.x = x.view(), .out = out.data(), .workspace = workspace.data()}; }
  Matrix x;
  Buffer<double> out;
  Buffer<char> workspace;
};

double run(Backend backend, SumSquares args) {
  testing::run(backend, args, sum_squares_cpu, TROUPE_CUDA_PATH(sum_squares_cuda));
  return *args.out;
}

class GradNormTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam().backend)) GTEST_SKIP() << "no GPU here";
    if (GetParam().backend == Backend::kCuda && GetParam().dtype == Dtype::kF64) {
      GTEST_SKIP() << "f64 is for the CPU";
    }
  }
  Problem problem() const { return {GetParam().size, GetParam().dtype}; }
};

TEST_P(GradNormTest, AgreesWithTheReference) {
  Problem got = problem(), want = problem();
  sum_squares_ref(want.args());
  EXPECT_NEAR(run(GetParam().backend, got.args()), want.out[0], 1e-13 * want.out[0]);
}

TEST_P(GradNormTest, AddsToWhatIsThere) {
  Problem p = problem();
  const double alone = run(GetParam().backend, p.args());
  SumSquares again = p.args();
  again.add = true;
  EXPECT_EQ(run(GetParam().backend, again), alone + alone);
}

TEST_P(GradNormTest, G4_EveryRunGivesTheSameBits) {
  Problem p = problem();
  const double first =
      run(GetParam().backend == Backend::kCuda ? Backend::kCuda : Backend::kCpu, p.args());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(run(GetParam().backend, p.args()), first);
}

TEST_P(GradNormTest, SeesASingleNan) {
  if (GetParam().size == 0) GTEST_SKIP() << "no place for it";
  Problem p = problem();
  p.x.set(0, GetParam().size - 1, NAN);
  EXPECT_TRUE(std::isnan(run(GetParam().backend, p.args())));
  p.x.set(0, GetParam().size - 1, INFINITY);
  EXPECT_TRUE(std::isinf(run(GetParam().backend, p.args())));
}

TEST_P(GradNormTest, SquaresBeyondFloatAreCounted) {
  if (GetParam().dtype == Dtype::kF16) GTEST_SKIP() << "f16 cannot hold 2^70";
  Problem p = problem();
  p.x.fill(0x1p70);
  EXPECT_EQ(run(GetParam().backend, p.args()), 0x1p140 * static_cast<double>(GetParam().size));
}

class ClipScaleTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }
};

TEST_P(ClipScaleTest, ClipsToTheNormAndRefusesNan) {
  const double inf = std::numeric_limits<double>::infinity();
  Buffer<double> sum(1);
  Buffer<float> scale(1), norm(1);
  const auto clip = [&](double sum_squares, float max_norm) {
    sum[0] = sum_squares;
    const ClipScale args{.sum_squares = sum.data(),
                         .scale = scale.data(),
                         .norm = norm.data(),
                         .max_norm = max_norm};
    testing::run(GetParam(), args, clip_scale_cpu, TROUPE_CUDA_PATH(clip_scale_cuda));
    return scale[0];
  };
  EXPECT_FLOAT_EQ(clip(16, 1), static_cast<float>(1 / (4 + 1e-6)));
  EXPECT_EQ(norm[0], 4);
  EXPECT_EQ(clip(0.25, 1), 1);
  EXPECT_EQ(clip(0, 1), 1);
  EXPECT_EQ(clip(16, std::numeric_limits<float>::infinity()), 1);
  EXPECT_TRUE(std::isnan(clip(inf, 1)));
  EXPECT_TRUE(std::isnan(clip(std::numeric_limits<double>::quiet_NaN(), 1)));
  EXPECT_TRUE(std::isnan(norm[0]));
}

// Rule F115: four experts' gradients over two ranks, squared norms 20 and 100.
TEST(GradNorm, F115_PiecesAddUpToOneNorm) {
  Matrix a(Dtype::kF32, 1, 5), b(Dtype::kF32, 1, 4);
  a.fill(2);
  b.fill(5);
  Buffer<double> sum(1);
  Buffer<char> workspace(8);
  sum_squares_cpu({.x = a.view(), .out = sum.data(), .workspace = workspace.data()}, serial);
  sum_squares_cpu({.x = b.view(), .out = sum.data(), .workspace = workspace.data(), .add = true},
                  serial);
  Buffer<float> scale(1), norm(1);
  clip_scale_cpu(
      {.sum_squares = sum.data(), .scale = scale.data(), .norm = norm.data(), .max_norm = 1},
      serial);
  EXPECT_FLOAT_EQ(norm[0], 10.954451f);
}

TEST(GradNorm, RefusesWhatItCannotMean) {
  Problem p(8, Dtype::kF32);
  SumSquares a = p.args();
  a.out = nullptr;
  EXPECT_THROW(sum_squares_cpu(a, serial), Error);
  a = p.args();
  a.workspace = nullptr;
  EXPECT_THROW(sum_squares_cpu(a, serial), Error);
  a = p.args();
  a.x.rows = 2;
  EXPECT_THROW(sum_squares_cpu(a, serial), Error);
  Buffer<float> out(2);
  ClipScale c{.sum_squares = p.out.data(), .scale = out.data(), .norm = out.data() + 1};
  EXPECT_THROW(clip_scale_cpu(c, serial), Error);  // max_norm is 0
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (Backend b : {Backend::kCpu, Backend::kCpuThreads, Backend::kCuda}) {
    for (Dtype d : {Dtype::kF32, Dtype::kBF16, Dtype::kF16, Dtype::kF64}) {
      for (int64_t n : {0, 1, 31, 4096, 16384, 16385, 262147}) cases.push_back({b, d, n});
    }
  }
  return cases;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  return std::string(name(info.param.backend)) + "_" + name(info.param.dtype) + "_n" +
         std::to_string(info.param.size);
}
INSTANTIATE_TEST_SUITE_P(All, GradNormTest, ::testing::ValuesIn(all_cases()), case_name);
INSTANTIATE_TEST_SUITE_P(All, ClipScaleTest, ::testing::Values(Backend::kCpu, Backend::kCuda),
                         testing::backend_name);

}  // namespace
}  // namespace troupe
