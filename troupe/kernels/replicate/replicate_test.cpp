#include "troupe/kernels/replicate/replicate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "troupe/testing/backend.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;
using testing::Matrix;

// Random sizes of E bins that sum to n, as inclusive sums.
Buffer<int32_t> random_bins(int64_t experts, int64_t n) {
  std::mt19937 rng(3);
  std::uniform_int_distribution<int64_t> expert(0, experts - 1);
  Buffer<int32_t> bins(experts);
  std::fill_n(bins.data(), experts, 0);
  for (int64_t i = 0; i < n; ++i) ++bins[expert(rng)];
  for (int64_t e = 1; e < experts; ++e) bins[e] += bins[e - 1];
  return bins;
}

struct Problem {
  Problem(Dtype dtype, int64_t rows, int64_t experts, int64_t n)
      : bins(random_bins(experts, n)),
        x(dtype, rows, experts),
        out(dtype, rows, n + 3),  // Three elements in no bin.
        grad_x(dtype, rows, experts) {
    x.fill_normal(4);
    out.fill(NAN);
    grad_x.fill(NAN);
  }
  Replicate args() {
    return {.x = x.view().data,
            .element_bytes = size_bytes(x.dtype()),
            .rows = x.rows(),
            .experts = x.cols(),
            .bins = bins.data(),
            .out = out.mut().data,
            .outputs = out.cols()};
  }
  ReplicateBackward backward() {
    return {.grad_out = out.view(), .bins = bins.data(), .grad_x = grad_x.mut()};
  }
  Buffer<int32_t> bins;
  Matrix x, out, grad_x;
};

class ReplicateTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }
  void run(const Replicate& a) const {
    testing::run(GetParam(), a, replicate_cpu, TROUPE_CUDA_PATH(replicate_cuda));
  }
  void run(const ReplicateBackward& a) const {
    testing::run(GetParam(), a, replicate_backward_cpu, TROUPE_CUDA_PATH(replicate_backward_cuda));
  }
  void expect_agreement(Dtype dtype, int64_t rows, int64_t experts, int64_t n) const {
    Problem want(dtype, rows, experts, n), got(dtype, rows, experts, n);
    replicate_ref(want.args());
    run(got.args());
    EXPECT_TRUE(got.out.same_bits(want.out)) << name(dtype) << " " << n << " over " << experts;
    if (GetParam() == Backend::kCuda && dtype == Dtype::kF64) return;
    want.out.fill_normal(8);
    got.out.fill_normal(8);
    replicate_backward_ref(want.backward());
    run(got.backward());
    // n values of size 1 are summed: float keeps 1e-6 of their root.
    const double bound = testing::tolerance(dtype).rtol;
    const testing::Tolerance near{bound, 1e-6 * std::sqrt(static_cast<double>(n) + 1)};
    testing::expect_near(got.grad_x, want.grad_x, near, name(dtype));
  }
};

// MegaBlocks' parameters: up to 16,384 tokens, 2 to 128 centers, rows 1 to 8, half precision.
TEST_P(ReplicateTest, P4_MegaBlocksParameters) {
  for (int64_t centers : {1, 2, 4, 8}) expect_agreement(Dtype::kF16, 1, centers, 8);
  for (int64_t rows : {2, 4, 8}) {
    for (int64_t centers : {2, 4, 8}) expect_agreement(Dtype::kF16, rows, centers, 8);
  }
  for (int64_t rows : {1, 2, 4, 8}) {
    for (int64_t centers : {2, 16, 128}) expect_agreement(Dtype::kF16, rows, centers, 16384);
  }
}

TEST_P(ReplicateTest, EveryTypeAndOddShapes) {
  for (Dtype d : {Dtype::kF32, Dtype::kBF16, Dtype::kF64}) {
    expect_agreement(d, 3, 60, 1001);
    expect_agreement(d, 1, 500, 17);
    expect_agreement(d, 2, 5, 0);
    expect_agreement(d, 0, 5, 9);
  }
}

// Needs no reference: what is spread over a bin and summed comes back times the bin's size.
TEST_P(ReplicateTest, BackwardOfForwardScalesByTheBin) {
  Problem p(Dtype::kF32, 2, 7, 300);
  run(p.args());
  run(p.backward());
  for (int64_t e = 0; e < 7; ++e) {
    const double size = p.bins[e] - (e == 0 ? 0 : p.bins[e - 1]);
    EXPECT_NEAR(p.grad_x.get(1, e), size * p.x.get(1, e), 1e-4) << "expert " << e;
  }
}
INSTANTIATE_TEST_SUITE_P(All, ReplicateTest,
                         ::testing::Values(Backend::kCpu, Backend::kCpuThreads, Backend::kCuda),
                         testing::backend_name);

TEST(Replicate, RefusesElementsOfAnOddSize) {
  Problem p(Dtype::kF32, 2, 3, 10);
  Replicate a = p.args();
  a.element_bytes = 3;
  EXPECT_THROW(replicate_cpu(a, serial), Error);
  ReplicateBackward b = p.backward();
  b.grad_x.rows = 1;
  EXPECT_THROW(replicate_backward_cpu(b, serial), Error);
}

}  // namespace
}  // namespace troupe
