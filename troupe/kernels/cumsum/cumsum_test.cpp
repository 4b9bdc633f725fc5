#include "troupe/kernels/cumsum/cumsum.h"

#include <gtest/gtest.h>

#include <random>

#include "troupe/testing/backend.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;

void run(Backend backend, const Cumsum& args) {
  testing::run(backend, args, cumsum_cpu, TROUPE_CUDA_PATH(cumsum_cuda));
}

template <class T>
struct Problem {
  Problem(int64_t num_rows, int64_t num_cols, int64_t low, int64_t high)
      : rows(num_rows),
        n(num_cols),
        x(rows * n + 1),
        out(rows * n + 1),
        workspace(workspace_bytes(Cumsum{.x = {nullptr, int_dtype_of<T>, rows, n}, .out = {}}) +
                  8) {
    std::mt19937 rng(5);
    std::uniform_int_distribution<int64_t> value(low, high);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<T>(value(rng));
    std::fill_n(out.data(), out.size(), T{-77});
  }
  Cumsum args(bool exclusive) {
    return {.x = {x.data(), int_dtype_of<T>, rows, n},
            .exclusive = exclusive,
            .out = {out.data(), int_dtype_of<T>, rows, n},
            .workspace = workspace.data()};
  }
  int64_t rows, n;
  Buffer<T> x, out;
  Buffer<uint8_t> workspace;
};

class CumsumTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }

  template <class T>
  void expect_agreement(int64_t rows, int64_t n, int64_t low = 0, int64_t high = 1) {
    for (bool exclusive : {false, true}) {
      Problem<T> want(rows, n, low, high), got(rows, n, low, high);
      cumsum_ref(want.args(exclusive));
      run(GetParam(), got.args(exclusive));
      for (size_t i = 0; i < want.out.size(); ++i) {
        ASSERT_EQ(got.out[i], want.out[i]) << rows << " x " << n << " at " << i;
      }
    }
  }
};

TEST_P(CumsumTest, P4_MegaBlocksParameters) {
  expect_agreement<int64_t>(1, 32);
  for (int64_t n : {1024, 16384}) {
    for (int64_t rows : {2, 4, 8, 16, 32, 64, 128}) expect_agreement<int64_t>(rows, n);
  }
  expect_agreement<int64_t>(2, 32);
}

TEST_P(CumsumTest, OddShapesAndTypes) {
  for (int64_t n : {0, 1, 7, 4095, 4096, 4097, 12289}) {
    expect_agreement<int16_t>(3, n, -9, 9);
    expect_agreement<int32_t>(3, n, -1000, 1000);
    expect_agreement<int64_t>(3, n, -1000, 1000);
  }
  expect_agreement<int32_t>(0, 5);
}

// One row of over 1,024 tiles: the second step runs more than once.
TEST_P(CumsumTest, E11_MoreTilesThanABlockHasThreads) {
  expect_agreement<int32_t>(1, 1030 * kCumsumTile + 3);
}

TEST_P(CumsumTest, WrapsInTheTypeOfTheInput) {
  expect_agreement<int16_t>(2, 5000, 20000, 32767);
}

TEST_P(CumsumTest, E7_OneElementKeepsItsShape) {
  Problem<int32_t> p(1, 1, 5, 5);
  run(GetParam(), p.args(false));
  EXPECT_EQ(p.out[0], 5);
  run(GetParam(), p.args(true));
  EXPECT_EQ(p.out[0], 0);
}

TEST_P(CumsumTest, OutMayBeTheInput) {
  Problem<int32_t> want(3, 9000, -5, 5), got(3, 9000, -5, 5);
  cumsum_ref(want.args(false));
  Cumsum a = got.args(false);
  a.out.data = got.x.data();
  run(GetParam(), a);
  for (int64_t i = 0; i < 3 * 9000; ++i) ASSERT_EQ(got.x[i], want.out[i]) << "at " << i;
}
INSTANTIATE_TEST_SUITE_P(All, CumsumTest,
                         ::testing::Values(Backend::kCpu, Backend::kCpuThreads, Backend::kCuda),
                         testing::backend_name);

TEST(Cumsum, RefusesOutputsOfAnotherShapeOrType) {
  Problem<int32_t> p(2, 4, 0, 1);
  Cumsum a = p.args(false);
  a.out.cols = 3;
  EXPECT_THROW(cumsum_cpu(a, serial), Error);
  a = p.args(false);
  a.out.dtype = IntDtype::kI64;
  EXPECT_THROW(cumsum_cpu(a, serial), Error);
}

}  // namespace
}  // namespace troupe
