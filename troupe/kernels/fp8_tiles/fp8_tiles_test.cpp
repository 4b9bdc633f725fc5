#include "troupe/kernels/fp8_tiles/fp8_tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "troupe/kernels/fp8/fp8.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;
using testing::Matrix;

template <class T>
bool same(Buffer<T>& a, Buffer<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

class Fp8Tiles : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }
};

// Values over many sizes, a zero block, a NaN and an infinity in blocks of their own.
void fill(Matrix& x, bool special) {
  x.fill_normal(3);
  x.each([&](int64_t r, int64_t c) {
    x.set(r, c, x.get(r, c) * std::ldexp(1.0, static_cast<int>((r * 5 + c / 128) % 23) - 11));
  });
  if (!special) return;
  for (int64_t r = 0; r < 128; ++r) {
    for (int64_t c = 0; c < 128; ++c) x.set(r, c, 0);
  }
  x.set(130, 5, NAN), x.set(140, 200, INFINITY);
}

TEST_P(Fp8Tiles, Q8_WeightsAreThoseOfQuantizeInBothOrders) {
  const int64_t E = 2, N = 256, K = 384;
  Matrix w(Dtype::kBF16, E * N, K);
  fill(w, true);
  Buffer<uint8_t> want(E * N * K), rows(E * N * K), turned(E * N * K);
  Buffer<float> want_scales(E * 2 * 3), scales(E * 2 * 3);
  quantize_fp8_ref({.x = w.view(),
                    .groups = {.rows = 128, .columns = 128, .part_rows = N},
                    .bytes = {want.data(), E * N, K, K},
                    .scales = {want_scales.data(), E * 2, 3, 3}});
  testing::run_reference(
      GetParam(),
      Fp8WeightTiles{w.view(), N, {rows.data(), E * N, K, K}, turned.data(), scales.data()},
      fp8_weight_tiles_ref, TROUPE_CUDA_PATH(fp8_weight_tiles_cuda));
  EXPECT_TRUE(same(rows, want));
  EXPECT_TRUE(same(scales, want_scales));
  for (int64_t e = 0; e < E; ++e) {
    for (int64_t n = 0; n < N; ++n) {
      for (int64_t k = 0; k < K; ++k) {
        ASSERT_EQ(turned[(e * K + k) * N + n], want[(e * N + n) * K + k]) << e << n << k;
      }
    }
  }
}

TEST_P(Fp8Tiles, Q8_21_WeightsOfOneScaleAnExpertAreThoseOfQuantize) {
  const int64_t E = 2, N = 256, K = 384;
  Matrix w(Dtype::kBF16, E * N, K);
  fill(w, false);
  Buffer<float> largest(E), want_scales(E * 2 * 3), scales(E * 2 * 3);
  largest[0] = 3, largest[1] = 100;
  Buffer<uint8_t> want(E * N * K), rows(E * N * K), turned(E * N * K);
  quantize_fp8_ref({.x = w.view(),
                    .largest = largest.data(),
                    .groups = {.rows = 128, .columns = 128, .part_rows = N},
                    .bytes = {want.data(), E * N, K, K},
                    .scales = {want_scales.data(), E * 2, 3, 3}});
  testing::run_reference(
      GetParam(),
      Fp8WeightTiles{
          w.view(), N, {rows.data(), E * N, K, K}, turned.data(), scales.data(), largest.data()},
      fp8_weight_tiles_ref, TROUPE_CUDA_PATH(fp8_weight_tiles_cuda));
  EXPECT_TRUE(same(rows, want));
  EXPECT_TRUE(same(scales, want_scales));
  EXPECT_NE(scales[0], scales[6]);
  for (int64_t e = 0; e < E; ++e) {
    for (int64_t n = 0; n < N; ++n) {
      for (int64_t k = 0; k < K; ++k) {
        ASSERT_EQ(turned[(e * K + k) * N + n], want[(e * N + n) * K + k]) << e << n << k;
      }
    }
  }
}

// Experts of 0, 1, 128, 129 and 0 rows, and 5 rows that are no expert's.
struct Rows {
  static constexpr int64_t kRows = 263, kWidth = 256, kExperts = 5;
  static constexpr int64_t kBlocks = fp8_row_blocks(kRows, kExperts), kPlaces = 128 * kBlocks;

  explicit Rows(bool special)
      : x(Dtype::kBF16, kRows, kWidth),
        offset(kExperts + 1),
        src(kRows),
        factor(40),
        by_row(kRows),
        rows(kRows * kWidth),
        columns(kWidth * kPlaces),
        row_scales(kRows * 2),
        block_scales(kBlocks * 2),
        largest(2) {
    largest[0] = 50, largest[1] = 800;  // of rows, and of blocks with their factors
    fill(x, special);
    const std::vector<int32_t> begins = {0, 0, 1, 129, 258, 258};
    std::copy(begins.begin(), begins.end(), offset.data());
    for (int64_t i = 0; i < 40; ++i) factor[i] = std::ldexp(1.0f, static_cast<int>(i % 9) - 4);
    for (int64_t r = 0; r < kRows; ++r) {
      src[r] = r % 17 == 3 ? -1 : static_cast<int32_t>(r * 7 % 40);
      by_row[r] = src[r] < 0 ? 1 : factor[src[r]];
    }
    std::memset(rows.data(), 0xa5, rows.size());
    std::memset(columns.data(), 0xa5, columns.size());
    std::fill_n(row_scales.data(), row_scales.size(), -5.0f);
    std::fill_n(block_scales.data(), block_scales.size(), -5.0f);
  }
  void run(Backend backend, bool given = false) {
    testing::run_reference(backend,
                           Fp8RowTiles{.x = x.view(),
                                       .expert_offset = offset.data(),
                                       .experts = kExperts,
                                       .row_src = src.data(),
                                       .factor = factor.data(),
                                       .rows = {rows.data(), kRows, kWidth, kWidth},
                                       .row_scales = row_scales.data(),
                                       .columns = columns.data(),
                                       .block_scales = block_scales.data(),
                                       .row_largest = given ? &largest[0] : nullptr,
                                       .block_largest = given ? &largest[1] : nullptr},
                           fp8_row_tiles_ref, TROUPE_CUDA_PATH(fp8_row_tiles_cuda));
  }

  Matrix x;
  Buffer<int32_t> offset, src;
  Buffer<float> factor, by_row;
  Buffer<uint8_t> rows, columns;
  Buffer<float> row_scales, block_scales, largest;
};

// Both orders of rows are those of quantize; `given`: of one maximum each (Q8-21).
void expect_rows_of_quantize(Backend backend, bool given) {
  Rows t(!given);
  t.run(backend, given);
  Buffer<uint8_t> want(Rows::kRows * Rows::kWidth);
  Buffer<float> scales(Rows::kRows * 2);
  quantize_fp8_ref({.x = t.x.view(),
                    .largest = given ? &t.largest[0] : nullptr,
                    .groups = {.rows = 1, .columns = 128},
                    .bytes = {want.data(), Rows::kRows, Rows::kWidth, Rows::kWidth},
                    .scales = {scales.data(), Rows::kRows, 2, 2}});
  for (int64_t r = 0; r < Rows::kRows; ++r) {
    const bool any = r < t.offset[Rows::kExperts];
    for (int64_t c = 0; c < Rows::kWidth; ++c) {
      ASSERT_EQ(t.rows[r * Rows::kWidth + c], any ? want[r * Rows::kWidth + c] : 0xa5) << r << c;
    }
    for (int64_t b = 0; b < 2; ++b) {
      const float got = t.row_scales[b * Rows::kRows + r], scale = any ? scales[r * 2 + b] : -5;
      ASSERT_TRUE(got == scale || (std::isnan(got) && std::isnan(scale))) << r << ' ' << b;
    }
  }
}

void expect_columns_of_quantize(Backend backend, bool given) {
  Rows t(!given);
  t.run(backend, given);
  const Fp8Groups groups{
      .rows = 128, .columns = 128, .offset = t.offset.data(), .experts = Rows::kExperts};
  Buffer<uint8_t> want(Rows::kRows * Rows::kWidth);
  Buffer<float> scales(Rows::kBlocks * 2);
  std::fill_n(scales.data(), scales.size(), -5.0f);
  quantize_fp8_ref({.x = t.x.view(),
                    .factor = t.by_row.data(),
                    .largest = given ? &t.largest[1] : nullptr,
                    .groups = groups,
                    .bytes = {want.data(), Rows::kRows, Rows::kWidth, Rows::kWidth},
                    .scales = {scales.data(), Rows::kBlocks, 2, 2}});
  EXPECT_TRUE(same(t.block_scales, scales));
  for (int64_t e = 0; e < Rows::kExperts; ++e) {
    const int64_t begin = t.offset[e], count = t.offset[e + 1] - begin;
    const int64_t place = 128 * (begin / 128 + e);
    for (int64_t p = 0; p < (count + 127) / 128 * 128; ++p) {
      const int64_t r = fragment_order(p);
      for (int64_t c = 0; c < Rows::kWidth; ++c) {
        ASSERT_EQ(t.columns[c * Rows::kPlaces + place + p],
                  r < count ? want[(begin + r) * Rows::kWidth + c] : 0)
            << e << ' ' << p << ' ' << c;
      }
    }
  }
}

TEST_P(Fp8Tiles, Q8_RowsAreThoseOfQuantize) {
  expect_rows_of_quantize(GetParam(), /*given=*/false);
}

TEST_P(Fp8Tiles, Q8_ColumnsAreThoseOfQuantizeTurnedAndPaddedWithZeros) {
  expect_columns_of_quantize(GetParam(), /*given=*/false);
}

TEST_P(Fp8Tiles, Q8_21_RowsAndColumnsOfOneMaximumAreThoseOfQuantize) {
  expect_rows_of_quantize(GetParam(), /*given=*/true);
  expect_columns_of_quantize(GetParam(), /*given=*/true);
}

TEST(Fp8TilesLayout, FragmentOrderIsAPermutationWithinSixteen) {
  for (int64_t first : {0, 16, 4096}) {
    std::set<int64_t> seen;
    for (int64_t p = first; p < first + 16; ++p) seen.insert(fragment_order(p));
    EXPECT_EQ(seen.size(), 16u);
    EXPECT_EQ(*seen.begin(), first);
    EXPECT_EQ(*seen.rbegin(), first + 15);
  }
}

TEST(Fp8TilesLayout, RefusesWidthsThatAreNoMultiplesOf128) {
  Matrix w(Dtype::kBF16, 128, 192);
  Buffer<float> scales(4);
  EXPECT_THROW(fp8_weight_tiles_ref({w.view(), 128, {}, nullptr, scales.data()}), Error);
  Matrix wide(Dtype::kBF16, 192, 128);
  EXPECT_THROW(fp8_weight_tiles_ref({wide.view(), 192, {}, nullptr, scales.data()}), Error);
}

INSTANTIATE_TEST_SUITE_P(All, Fp8Tiles, ::testing::Values(Backend::kCpu, Backend::kCuda),
                         testing::backend_name);

}  // namespace
}  // namespace troupe
