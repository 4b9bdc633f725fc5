#include "troupe/kernels/radix_sort/radix_sort.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "troupe/testing/backend.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;

void run(Backend backend, const RadixSort& args) {
  testing::run(backend, args, radix_sort_cpu, TROUPE_CUDA_PATH(radix_sort_cuda));
}

template <class T>
struct Problem {
  Problem(int64_t size, int bits, int64_t low, int64_t high)
      : n(size),
        end_bit(bits),
        x(n + 1),
        out(n + 1),
        indices(n + 1),
        workspace(workspace_bytes(RadixSort{
                      .x = {nullptr, int_dtype_of<T>, 1, size}, .end_bit = bits, .out = {}}) +
                  8) {
    std::mt19937 rng(5);
    std::uniform_int_distribution<int64_t> value(low, high);
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<T>(value(rng));
    std::fill_n(out.data(), out.size(), T{-77});
    std::fill_n(indices.data(), indices.size(), -77);
  }
  RadixSort args() {
    return {.x = {x.data(), int_dtype_of<T>, 1, n},
            .end_bit = end_bit,
            .out = {out.data(), int_dtype_of<T>, 1, n},
            .indices = indices.data(),
            .workspace = workspace.data()};
  }
  int64_t n;
  int end_bit;
  Buffer<T> x, out;
  Buffer<int32_t> indices;
  Buffer<uint8_t> workspace;
};

class RadixSortTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }

  template <class T>
  void expect_agreement(int64_t n, int end_bit, int64_t low, int64_t high) {
    Problem<T> want(n, end_bit, low, high), got(n, end_bit, low, high);
    radix_sort_ref(want.args());
    for (int repeat = 0; repeat < 2; ++repeat) {
      run(GetParam(), got.args());
      for (int64_t i = 0; i <= n; ++i) {
        ASSERT_EQ(got.out[i], want.out[i]) << "n " << n << " bits " << end_bit << " at " << i;
        ASSERT_EQ(got.indices[i], want.indices[i]) << "n " << n << " bits " << end_bit;
      }
    }
  }
};

// MegaBlocks' parameters: three types, up to 16,384 values below 128 or below the type's maximum.
TEST_P(RadixSortTest, P4_MegaBlocksParameters) {
  for (int64_t n : {32, 1024, 16384}) {
    expect_agreement<int16_t>(n, 7, 0, 127);
    expect_agreement<int32_t>(n, 7, 0, 127);
    expect_agreement<int64_t>(n, 7, 0, 127);
    expect_agreement<int16_t>(n, 15, 0, std::numeric_limits<int16_t>::max() - 1);
    expect_agreement<int32_t>(n, 31, 0, std::numeric_limits<int32_t>::max() - 1);
    expect_agreement<int64_t>(n, 63, 0, std::numeric_limits<int64_t>::max() - 1);
  }
}

TEST_P(RadixSortTest, OddSizesAndManyTiles) {
  for (int64_t n : {0, 1, 2, 2047, 2048, 2049, 600011}) expect_agreement<int32_t>(n, 9, 0, 511);
}

TEST_P(RadixSortTest, NegativeValuesComeFirstWithAllBits) {
  expect_agreement<int16_t>(3001, 16, -32768, 32767);
  expect_agreement<int32_t>(3001, 32, -1000, 1000);
  expect_agreement<int64_t>(3001, 64, std::numeric_limits<int64_t>::min(),
                            std::numeric_limits<int64_t>::max());
}

TEST_P(RadixSortTest, BitsFromTheEndOnDoNotCount) {
  expect_agreement<int32_t>(3001, 3, -1000, 1000);
  expect_agreement<int64_t>(3001, 12, 0, 1 << 20);
}

// Equal values keep their order, which makes `indices` those of the routing plan (rule P1).
TEST_P(RadixSortTest, P4_EqualValuesKeepTheirOrder) {
  Problem<int32_t> p(50000, 6, 0, 59);
  run(GetParam(), p.args());
  for (int64_t i = 1; i < p.n; ++i) {
    ASSERT_LE(p.out[i - 1], p.out[i]);
    ASSERT_TRUE(p.out[i - 1] < p.out[i] || p.indices[i - 1] < p.indices[i]) << "at " << i;
    ASSERT_EQ(p.x[p.indices[i]], p.out[i]);
  }
}
INSTANTIATE_TEST_SUITE_P(All, RadixSortTest,
                         ::testing::Values(Backend::kCpu, Backend::kCpuThreads, Backend::kCuda),
                         testing::backend_name);

// max(ceil(log2 E), 1) bits order the experts as all bits do, and one less does not.
TEST(RadixSort, P4_SortBitsAreThoseOfTheExperts) {
  for (const auto& [experts, bits] :
       {std::pair{1, 1}, {2, 1}, {3, 2}, {128, 7}, {129, 8}, {70000, 17}}) {
    Problem<int32_t> p(3001, bits, 0, experts - 1);
    p.x[0] = experts - 1;
    p.x[1] = 0;
    radix_sort_cpu(p.args(), serial);
    EXPECT_TRUE(std::is_sorted(p.out.data(), p.out.data() + p.n)) << experts;
    if (bits == 1) continue;
    p.end_bit = bits - 1;
    radix_sort_cpu(p.args(), serial);
    EXPECT_FALSE(std::is_sorted(p.out.data(), p.out.data() + p.n)) << experts;
  }
}

TEST(RadixSort, RefusesBitsOutsideTheType) {
  Problem<int16_t> p(8, 7, 0, 100);
  for (int bits : {0, -1, 17}) {
    RadixSort a = p.args();
    a.end_bit = bits;
    EXPECT_THROW(radix_sort_cpu(a, serial), Error);
  }
  RadixSort a = p.args();
  a.out.data = p.x.data();
  EXPECT_THROW(radix_sort_cpu(a, serial), Error);
}

}  // namespace
}  // namespace troupe
