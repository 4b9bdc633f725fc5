#include "troupe/kernels/histogram/histogram.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "troupe/testing/backend.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;

void run(Backend backend, const Histogram& args) {
  testing::run(backend, args, histogram_cpu, TROUPE_CUDA_PATH(histogram_cuda));
}

// The kernels that a path has: on CUDA the one without clusters too.
std::vector<bool> kernels(Backend backend) {
  return backend == Backend::kCuda ? std::vector<bool>{false, true} : std::vector<bool>{false};
}

template <class T>
struct Problem {
  Problem(int64_t num_rows, int64_t num_cols, int64_t num_bins, int64_t low, int64_t high)
      : rows(num_rows), n(num_cols), bins(num_bins), x(rows * n + 1), out(rows * bins + 1) {
    std::mt19937 rng(5);
    std::uniform_int_distribution<int64_t> value(low, high);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<T>(value(rng));
    std::fill_n(out.data(), out.size(), -77);
  }
  Histogram args() {
    return {.x = {x.data(), int_dtype_of<T>, rows, n}, .bins = bins, .out = out.data()};
  }
  int64_t rows, n, bins;
  Buffer<T> x;
  Buffer<int32_t> out;
};

class HistogramTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }

  template <class T>
  void expect_agreement(int64_t rows, int64_t n, int64_t bins, int64_t low, int64_t high) {
    Problem<T> want(rows, n, bins, low, high);
    histogram_ref(want.args());
    for (const bool generic : kernels(GetParam())) {
      Problem<T> got(rows, n, bins, low, high);
      Histogram args = got.args();
      args.generic = generic;
      run(GetParam(), args);
      for (size_t i = 0; i < want.out.size(); ++i) {
        ASSERT_EQ(got.out[i], want.out[i])
            << rows << " x " << n << " bins " << bins << " at " << i << " generic " << generic;
      }
    }
  }
  template <class T>
  void expect_agreement(int64_t rows, int64_t n, int64_t bins) {
    expect_agreement<T>(rows, n, bins, 0, bins - 1);
  }
};

// MegaBlocks' parameters: three types, rows 1, 2, 8, up to 16,384 elements, 128 and 1,024 values.
TEST_P(HistogramTest, P4_MegaBlocksParameters) {
  for (int64_t rows : {1, 2, 8}) {
    for (int64_t n : {32, 1024, 16384}) {
      for (int64_t bins : {128, 1024}) {
        expect_agreement<int16_t>(rows, n, bins);
        expect_agreement<int32_t>(rows, n, bins);
        expect_agreement<int64_t>(rows, n, bins);
      }
    }
  }
}

// Rows of one block of a cluster, of all eight, of more than a cluster takes; and rows that do not
// begin at 16 bytes.
TEST_P(HistogramTest, RowsOfAllClusters) {
  for (int64_t n : {4096, 4100, 65536, 262144, 262145}) expect_agreement<int32_t>(1, n, 128);
  for (int64_t n : {8191, 65537}) expect_agreement<int16_t>(2, n, 1024);
  expect_agreement<int64_t>(3, 20001, 8192);
}

TEST_P(HistogramTest, OddShapes) {
  for (int64_t n : {0, 1, 257, 4097}) {
    for (int64_t bins : {1, 3, 127, 8193, 70000}) expect_agreement<int32_t>(3, n, bins);
  }
  expect_agreement<int32_t>(0, 5, 3);
}

TEST_P(HistogramTest, ValuesOutsideTheBinsAreCountedNowhere) {
  expect_agreement<int32_t>(2, 1000, 10, -20, 20);
  expect_agreement<int64_t>(1, 1000, 10, -(int64_t{1} << 40), int64_t{1} << 40);
  expect_agreement<int16_t>(1, 1000, 100000, -32768, 32767);
}

// Needs no reference.
TEST_P(HistogramTest, CountsSumToTheElements) {
  Problem<int32_t> p(3, 5001, 60, 0, 59);
  run(GetParam(), p.args());
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(std::accumulate(p.out.data() + i * 60, p.out.data() + (i + 1) * 60, 0), 5001);
  }
}
INSTANTIATE_TEST_SUITE_P(All, HistogramTest,
                         ::testing::Values(Backend::kCpu, Backend::kCpuThreads, Backend::kCuda),
                         testing::backend_name);

TEST(Histogram, AsksForClustersOfRowsThatOneCanRead) {
  const auto blocks = [](int64_t n, int64_t bins, bool generic = false) {
    const Histogram a{
        .x = {nullptr, IntDtype::kI32, 1, n}, .bins = bins, .out = nullptr, .generic = generic};
    return choose_histogram_plan(a).cluster_blocks;
  };
  EXPECT_EQ(blocks(16384, 128, true), 0);
  EXPECT_EQ(blocks(0, 128), 1);
  EXPECT_EQ(blocks(4096, 128), 1);
  EXPECT_EQ(blocks(4097, 128), 2);
  EXPECT_EQ(blocks(16384, 128), 4);
  EXPECT_EQ(blocks(262144, 128), 8);
  EXPECT_EQ(blocks(262145, 128), 0);
  EXPECT_EQ(blocks(16384, 8193), 0);
}

TEST(Histogram, RefusesNoBins) {
  Problem<int32_t> p(1, 4, 2, 0, 1);
  Histogram a = p.args();
  a.bins = 0;
  EXPECT_THROW(histogram_cpu(a, serial), Error);
}

}  // namespace
}  // namespace troupe
