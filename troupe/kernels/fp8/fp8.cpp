// The contract, and the reference: written to be read beside the rule, not to be fast.
#include "troupe/kernels/fp8/fp8.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "troupe/core/number/round.h"

namespace troupe {
namespace {

constexpr double kLargest = 448;

// Each part's first row, and after the last part its end.
std::vector<int64_t> parts(const Fp8Groups& g, int64_t R) {
  if (g.offset != nullptr) return {g.offset, g.offset + g.experts + 1};
  std::vector<int64_t> begins;
  for (int64_t r = 0; r<R; r += g.part_rows> 0 ? g.part_rows : R) begins.push_back(r);
  begins.push_back(R);
  return begins;
}

// f(first row, end, first column, end, row of scales, column of scales) for each group.
template <class F>
void each_group(const Fp8Groups& g, int64_t R, int64_t C, F&& f) {
  const int64_t columns = g.columns == kWholeRow ? std::max<int64_t>(C, 1) : g.columns;
  const std::vector<int64_t> begins = parts(g, R);
  int64_t row = 0;
  for (size_t p = 0; p + 1 < begins.size(); ++p) {
    if (g.offset != nullptr) row = begins[p] / g.rows + static_cast<int64_t>(p);
    for (int64_t r = begins[p]; r < begins[p + 1]; r += g.rows, ++row) {
      for (int64_t c = 0; c < C; c += columns) {
        f(r, std::min(r + g.rows, begins[p + 1]), c, std::min(c + columns, C), row, c / columns);
      }
    }
  }
}

// The smallest power of two s with largest <= 448 s.
double scale_of(double largest) {
  if (!std::isfinite(largest)) return NAN;
  if (largest == 0) return 1;
  int exponent = -126;
  while (exponent < 120 && largest > std::ldexp(kLargest, exponent)) ++exponent;
  return std::ldexp(1, exponent);
}

// The nearest e4m3 of q, as a byte: steps of 2^-9 below 2^-6, of an eighth of the power of two
// above, and nothing past 448. std::nearbyint's default mode is the one that is asked for.
uint8_t nearest(double q) {
  if (std::isnan(q)) return 0x7f;
  const double size = std::min(std::abs(q), kLargest);
  const int sign = std::signbit(q) ? 0x80 : 0;
  int exponent = size == 0 ? -6 : std::max(std::ilogb(size), -6);
  double steps = std::nearbyint(std::ldexp(size, 3 - exponent));  // 0 to 16
  if (steps == 16) steps = 8, ++exponent;
  if (steps < 8) return static_cast<uint8_t>(sign | static_cast<int>(steps));
  return static_cast<uint8_t>(sign | (exponent + 7) << 3 | (static_cast<int>(steps) - 8));
}

double meaning(uint8_t byte) {
  const int e = (byte >> 3) & 15, m = byte & 7;
  if (e == 15 && m == 7) return NAN;
  const double size = e == 0 ? std::ldexp(m, -9) : std::ldexp(8 + m, e - 10);
  return byte >= 0x80 ? -size : size;
}

void check_groups(const Fp8Groups& g, int64_t R) {
  const bool tile = (g.rows == 1 && (g.columns == kWholeRow || g.columns == 128)) ||
                    (g.rows == 128 && g.columns == 128);
  TROUPE_CHECK(tile, "groups of", g.rows, "rows and", g.columns,
               "columns: kernels are built for 1 x 0 (whole rows), 1 x 128 and 128 x 128");
  TROUPE_CHECK(g.part_rows >= 0 && (g.part_rows == 0 || R % g.part_rows == 0), "parts of",
               g.part_rows, "rows do not divide", R, "rows");
  TROUPE_CHECK((g.offset != nullptr) == (g.experts > 0) && (g.experts == 0 || g.part_rows == 0),
               "offsets go with at least one expert and no part_rows; there are", g.experts,
               "experts and parts of", g.part_rows, "rows");
}

void check_bytes(const Mat<const uint8_t>& bytes, const Mat<const float>& scales,
                 const Fp8Groups& groups, int64_t R, int64_t C) {
  check_groups(groups, R);
  TROUPE_CHECK(bytes.rows == R && bytes.cols == C, "bytes is", bytes.rows, "x", bytes.cols,
               "and must be", R, "x", C);
  TROUPE_CHECK(bytes.data != nullptr || R * C == 0, "bytes is missing");
  TROUPE_CHECK(bytes.ld >= C, "bytes has rows of", C, "elements,", bytes.ld, "apart");
  const int64_t rows = scale_rows(groups, R), columns = scale_columns(groups, C);
  check_matrix({scales.data, Dtype::kF32, scales.rows, scales.cols, scales.ld}, "scales", rows,
               columns, Dtype::kF32);
}

template <class T>
Mat<const T> read(const Mat<T>& m) {
  return {m.data, m.rows, m.cols, m.ld};
}

}  // namespace

int64_t scale_rows(const Fp8Groups& g, int64_t R) {
  if (g.experts > 0) return R / g.rows + g.experts;
  if (g.part_rows > 0) return R / g.part_rows * ceil_div(g.part_rows, g.rows);
  return ceil_div(R, g.rows);
}

int64_t scale_columns(const Fp8Groups& g, int64_t C) {
  return g.columns == kWholeRow ? (C > 0 ? 1 : 0) : ceil_div(C, g.columns);
}

void validate(const QuantizeFp8& a) {
  check_matrix(a.x, "x", a.x.rows, a.x.cols, a.x.dtype);
  check_bytes(read(a.bytes), read(a.scales), a.groups, a.x.rows, a.x.cols);
}

void validate(const DequantizeFp8& a) {
  check_matrix(a.x.read(), "x", a.x.rows, a.x.cols, a.x.dtype);
  check_bytes(a.bytes, a.scales, a.groups, a.x.rows, a.x.cols);
}

namespace {

// Each element once in its own type and once as a byte, and the scales.
template <class Args>
int64_t bytes_both_ways(const Args& a) {
  return a.x.rows * a.x.cols * (size_bytes(a.x.dtype) + 1) + a.scales.rows * a.scales.cols * 4;
}

}  // namespace

int64_t bytes_moved(const QuantizeFp8& a) {
  return bytes_both_ways(a);
}

int64_t bytes_moved(const DequantizeFp8& a) {
  return bytes_both_ways(a);
}

void quantize_fp8_ref(const QuantizeFp8& a) {
  validate(a);
  dispatch_float(a.x.dtype, [&]<class T>() {
    const auto x = a.x.as<T>();
    const auto at = [&](int64_t r, int64_t c) -> double {
      return static_cast<float>(x(r, c)) * (a.factor == nullptr ? 1.0 : double{a.factor[r]});
    };
    each_group(a.groups, x.rows, x.cols,
               [&](int64_t r0, int64_t r1, int64_t c0, int64_t c1, int64_t row, int64_t column) {
                 const bool given = a.largest != nullptr;
                 double largest =
                     given ? a.largest[a.groups.part_rows > 0 ? r0 / a.groups.part_rows : 0] : 0;
                 for (int64_t r = r0; !given && r < r1; ++r) {
                   for (int64_t c = c0; c < c1; ++c) {
                     const double size = std::abs(at(r, c));
                     if (!(size <= largest)) largest = std::isnan(largest) ? largest : size;
                   }
                 }
                 const double scale = scale_of(largest);
                 a.scales(row, column) = static_cast<float>(scale);
                 for (int64_t r = r0; r < r1; ++r) {
                   for (int64_t c = c0; c < c1; ++c) {
                     a.bytes(r, c) = std::isnan(scale) ? 0x7f : nearest(at(r, c) / scale);
                   }
                 }
               });
  });
}

void dequantize_fp8_ref(const DequantizeFp8& a) {
  validate(a);
  dispatch_float(a.x.dtype, [&]<class T>() {
    const auto x = a.x.as<T>();
    each_group(a.groups, x.rows, x.cols,
               [&](int64_t r0, int64_t r1, int64_t c0, int64_t c1, int64_t row, int64_t column) {
                 const double scale = a.scales(row, column);
                 for (int64_t r = r0; r < r1; ++r) {
                   for (int64_t c = c0; c < c1; ++c) {
                     x(r, c) = static_cast<T>(static_cast<float>(meaning(a.bytes(r, c)) * scale));
                   }
                 }
               });
  });
}

}  // namespace troupe
