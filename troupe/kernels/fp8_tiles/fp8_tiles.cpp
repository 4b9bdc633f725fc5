// The contracts, and the references: the rule of kernels/fp8, written once for each order.
#include "troupe/kernels/fp8_tiles/fp8_tiles.h"

#include <algorithm>
#include <cmath>

#include "troupe/core/number/fp8_scale.h"
#include "troupe/core/number/round.h"

namespace troupe {
namespace {

void check_tiles(const MatRef& x, const char* name) {
  TROUPE_CHECK(x.dtype == Dtype::kBF16, name, "is", troupe::name(x.dtype), "not bf16");
  TROUPE_CHECK(x.cols > 0 && x.cols % kFp8Tile == 0, name, "has", x.cols,
               "columns, which is no multiple of", kFp8Tile);
  TROUPE_CHECK(x.ld == x.cols, name, "has row stride", x.ld, "of", x.cols);
  TROUPE_CHECK(x.rows == 0 || x.data != nullptr, name, "is null");
  TROUPE_CHECK(reinterpret_cast<uintptr_t>(x.data) % 16 == 0, name, "is not 16-byte aligned");
}

void check_bytes(const Mat<uint8_t>& bytes, const MatRef& x, const char* name) {
  if (bytes.data == nullptr) return;
  TROUPE_CHECK(bytes.rows == x.rows && bytes.cols == x.cols && bytes.ld == x.cols, name, "is",
               bytes.rows, "x", bytes.cols, "not", x.rows, "x", x.cols);
}

// The scale of `largest`; null: of |f x| over rows [begin, end) and 128 columns from c.
template <class Factor>
Fp8Scale scale_of(const float* largest, const Mat<const BF16>& x, int64_t begin, int64_t end,
                  int64_t c, const Factor& factor) {
  if (largest != nullptr) return fp8_scale(magnitude(*largest));
  uint32_t top = 0;
  for (int64_t r = begin; r < end; ++r) {
    for (int64_t i = 0; i < kFp8Tile; ++i) {
      top = std::max(top, magnitude(static_cast<float>(x(r, c + i)) * factor(r)));
    }
  }
  return fp8_scale(top);
}

uint8_t byte_of(float v, const Fp8Scale& s) {
  return static_cast<uint8_t>(fp8_byte(v, s));
}

constexpr auto kNoFactor = [](int64_t) { return 1.0f; };

}  // namespace

void validate(const Fp8WeightTiles& a) {
  check_tiles(a.w, "w");
  TROUPE_CHECK(a.matrix_rows > 0 && a.matrix_rows % kFp8Tile == 0, "a matrix has", a.matrix_rows,
               "rows, which is no multiple of", kFp8Tile);
  TROUPE_CHECK(a.w.rows % a.matrix_rows == 0, "rows", a.w.rows, "of matrices of", a.matrix_rows);
  check_bytes(a.rows, a.w, "rows");
  TROUPE_CHECK(a.w.rows == 0 || a.scales != nullptr, "scales are null");
}

void validate(const Fp8RowTiles& a) {
  check_tiles(a.x, "x");
  TROUPE_CHECK(a.experts > 0 && a.expert_offset != nullptr, "experts", a.experts);
  TROUPE_CHECK(a.factor == nullptr || a.row_src != nullptr, "a factor without row_src");
  check_bytes(a.rows, a.x, "rows");
  TROUPE_CHECK((a.rows.data == nullptr) == (a.row_scales == nullptr) || a.x.rows == 0,
               "rows and row_scales go together");
  TROUPE_CHECK((a.columns == nullptr) == (a.block_scales == nullptr),
               "columns and block_scales go together");
  if (a.rows.data != nullptr && a.columns != nullptr) {
    TROUPE_CHECK((a.row_largest == nullptr) == (a.block_largest == nullptr),
                 "rows and columns that are made together have both a given maximum, or neither");
  }
}

void fp8_weight_tiles_ref(const Fp8WeightTiles& a) {
  validate(a);
  const auto w = a.w.as<BF16>();
  const int64_t N = a.matrix_rows, K = w.cols, blocks = K / kFp8Tile;
  for (int64_t r = 0; r < w.rows; r += kFp8Tile) {
    for (int64_t c = 0; c < K; c += kFp8Tile) {
      const float* const largest = a.largest == nullptr ? nullptr : a.largest + r / N;
      const Fp8Scale scale = scale_of(largest, w, r, r + kFp8Tile, c, kNoFactor);
      a.scales[r / kFp8Tile * blocks + c / kFp8Tile] = scale.scale;
      for (int64_t i = r; i < r + kFp8Tile; ++i) {
        for (int64_t j = c; j < c + kFp8Tile; ++j) {
          const uint8_t byte = byte_of(static_cast<float>(w(i, j)), scale);
          if (a.rows.data != nullptr) a.rows(i, j) = byte;
          if (a.transposed != nullptr) a.transposed[(i / N * K + j) * N + i % N] = byte;
        }
      }
    }
  }
}

void fp8_row_tiles_ref(const Fp8RowTiles& a) {
  validate(a);
  const auto x = a.x.as<BF16>();
  const int64_t C = x.cols, blocks = fp8_row_blocks(x.rows, a.experts), P = blocks * kFp8Tile;
  const auto factor = [&](int64_t r) {
    return a.factor == nullptr || a.row_src[r] < 0 ? 1.0f : a.factor[a.row_src[r]];
  };
  for (int64_t e = 0; e < a.experts; ++e) {
    const int64_t begin = a.expert_offset[e], end = a.expert_offset[e + 1];
    for (int64_t first = begin; first < end; first += kFp8Tile) {
      const int64_t last = std::min(first + kFp8Tile, end);
      const int64_t block = begin / kFp8Tile + e + (first - begin) / kFp8Tile;
      for (int64_t c = 0; c < C; c += kFp8Tile) {
        for (int64_t r = first; a.rows.data != nullptr && r < last; ++r) {
          const Fp8Scale scale = scale_of(a.row_largest, x, r, r + 1, c, kNoFactor);
          a.row_scales[c / kFp8Tile * x.rows + r] = scale.scale;
          for (int64_t j = c; j < c + kFp8Tile; ++j) {
            a.rows(r, j) = byte_of(static_cast<float>(x(r, j)), scale);
          }
        }
        if (a.columns == nullptr) continue;
        const Fp8Scale scale = scale_of(a.block_largest, x, first, last, c, factor);
        a.block_scales[block * (C / kFp8Tile) + c / kFp8Tile] = scale.scale;
        for (int64_t p = 0; p < kFp8Tile; ++p) {
          const int64_t r = first + fragment_order(p);
          for (int64_t j = c; j < c + kFp8Tile; ++j) {
            a.columns[j * P + block * kFp8Tile + p] =
                r < last ? byte_of(static_cast<float>(x(r, j)) * factor(r), scale) : 0;
          }
        }
      }
    }
  }
}

}  // namespace troupe
