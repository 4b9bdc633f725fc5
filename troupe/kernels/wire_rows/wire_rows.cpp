// The contract, and the reference: written to be read beside the rule, not to be fast.
#include "troupe/kernels/wire_rows/wire_rows.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "troupe/core/number/e4m3.h"
#include "troupe/core/number/round.h"

namespace troupe {
namespace {

constexpr uint16_t kNan = 0xff80;

// What follows the nine leading bits of a positive number is cut off.
double cut(double v) {
  int exponent = 0;
  const double fraction = std::frexp(v, &exponent);  // in [1/2, 1)
  return std::ldexp(std::floor(std::ldexp(fraction, 9)), exponent - 9);
}

double scale_of(double largest) {
  if (largest == 0) return 0;
  const float wanted = static_cast<float>(largest * static_cast<double>(1.0f / 127.0f));
  return std::max(cut(wanted), std::ldexp(1.0, -126));
}

uint16_t code_of(double scale) {
  return static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(scale)) >> 15);
}

// std::nearbyint's default mode is the one that is asked for. The product of two floats is exact.
int quantized(double x, double scale) {
  if (scale == 0) return 0;
  return static_cast<int>(std::nearbyint(x * static_cast<double>(static_cast<float>(1 / scale))));
}

void pack_row(const std::vector<double>& x, const WireRow& row, uint8_t* to) {
  std::fill_n(to, row.bytes, uint8_t{0});
  const auto width = static_cast<int64_t>(x.size());
  const auto ill = [](double v) { return !std::isfinite(v); };
  const bool finite = std::ranges::none_of(x, ill);
  for (int64_t g = 0; g < row.groups; ++g) {
    const auto first = x.begin() + g * kWireGroup;
    const auto last = x.begin() + std::min((g + 1) * kWireGroup, width);
    double largest = 0;
    for (auto v = first; v != last; ++v) largest = std::max(largest, std::abs(*v));
    const bool whole = std::none_of(first, last, ill);
    const double scale = whole ? scale_of(largest) : 0;
    for (auto v = first; v != last; ++v) {
      to[v - x.begin()] = static_cast<uint8_t>(whole ? quantized(*v, scale) : 0);
    }
    const uint16_t code = finite ? code_of(scale) : kNan;
    std::memcpy(to + row.scales_at + 2 * g, &code, sizeof code);
  }
}

// The smallest power of two s, within [2^-126, 2^120], with largest <= 448 s.
double e4m3_scale_of(double largest) {
  if (largest == 0) return 1;
  int exponent = -126;
  while (exponent < 120 && largest > std::ldexp(448, exponent)) ++exponent;
  return std::ldexp(1, exponent);
}

void pack_row_in_e4m3(const std::vector<double>& x, const WireRow& row, uint8_t* to) {
  std::fill_n(to, row.bytes, uint8_t{0});
  if (x.empty()) return;
  double largest = 0;
  bool finite = true;
  for (const double v : x) {
    largest = std::max(largest, std::abs(v));
    finite = finite && std::isfinite(v);
  }
  const double scale = finite ? e4m3_scale_of(largest) : 1;
  for (size_t i = 0; i < x.size(); ++i) {
    to[i] = finite ? E4M3(static_cast<float>(x[i] / scale)).bits : uint8_t{0x7f};
  }
  const float kept = finite ? static_cast<float>(scale) : std::numeric_limits<float>::quiet_NaN();
  std::memcpy(to + row.scales_at, &kept, sizeof kept);
}

double unpacked_element(const uint8_t* from, int64_t i, const WireRow& row, WireCode code) {
  if (code == WireCode::kE4m3) {
    float scale = 0;
    std::memcpy(&scale, from + row.scales_at, sizeof scale);
    return static_cast<double>(E4M3::widen(from[i])) * scale;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, from + row.scales_at + 2 * (i / kWireGroup), sizeof bits);
  return static_cast<int8_t>(from[i]) * double{std::bit_cast<float>(uint32_t{bits} << 15)};
}

void check_packed(const Mat<const uint8_t>& packed, int64_t width, WireCode code) {
  const int64_t bytes = wire_row(width, code).bytes;
  TROUPE_CHECK(packed.cols == bytes && packed.ld == bytes, "packed rows of", width, "elements have",
               packed.cols, "bytes,", packed.ld, "apart, and must have", bytes);
  TROUPE_CHECK(packed.data != nullptr || packed.rows * bytes == 0, "packed is missing");
  TROUPE_CHECK(reinterpret_cast<uintptr_t>(packed.data) % 4 == 0, "packed must begin on 4 bytes");
}

}  // namespace

WireRow wire_row(int64_t width, WireCode code) {
  if (code == WireCode::kE4m3) {
    const int64_t scale_at = round_up(width, 4);
    return {.groups = width > 0 ? 1 : 0,
            .scales_at = scale_at,
            .bytes = width > 0 ? round_up(scale_at + 4, 16) : 0};
  }
  const int64_t groups = ceil_div(width, kWireGroup), scales_at = round_up(width, 2);
  return {.groups = groups, .scales_at = scales_at, .bytes = round_up(scales_at + 2 * groups, 4)};
}

void validate(const PackRows& a) {
  check_matrix(a.x, "x", a.x.rows, a.x.cols, a.x.dtype);
  const Mat<uint8_t>& p = a.packed;
  check_packed({p.data, p.rows, p.cols, p.ld}, a.x.cols, a.code);
  TROUPE_CHECK(a.index != nullptr || p.rows == a.x.rows || p.rows == 0, "no index for", p.rows,
               "rows of", a.x.rows);
}

void validate(const UnpackRows& a) {
  check_matrix(a.out.read(), "out", a.packed.rows, a.out.cols, a.out.dtype);
  check_packed(a.packed, a.out.cols, a.code);
}

int64_t bytes_moved(const PackRows& a) {
  const int64_t index = a.index == nullptr ? 0 : 8;
  return a.packed.rows * (a.x.cols * size_bytes(a.x.dtype) + a.packed.cols + index);
}

int64_t bytes_moved(const UnpackRows& a) {
  return a.packed.rows * (a.out.cols * size_bytes(a.out.dtype) + a.packed.cols);
}

void pack_rows_ref(const PackRows& a) {
  validate(a);
  const WireRow row = wire_row(a.x.cols, a.code);
  dispatch_float64(a.x.dtype, [&]<class T>() {
    const auto x = a.x.as<T>();
    std::vector<double> values(static_cast<size_t>(x.cols));
    for (int64_t r = 0; r < a.packed.rows; ++r) {
      const T* from = x.row(a.index == nullptr ? r : a.index[r]);
      for (int64_t i = 0; i < x.cols; ++i) {
        values[static_cast<size_t>(i)] = static_cast<float>(from[i]);
      }
      a.code == WireCode::kE4m3 ? pack_row_in_e4m3(values, row, a.packed.row(r))
                                : pack_row(values, row, a.packed.row(r));
    }
  });
}

void unpack_rows_ref(const UnpackRows& a) {
  validate(a);
  const WireRow row = wire_row(a.out.cols, a.code);
  dispatch_float64(a.out.dtype, [&]<class T>() {
    const auto out = a.out.as<T>();
    for (int64_t r = 0; r < out.rows; ++r) {
      const uint8_t* from = a.packed.row(r);
      for (int64_t i = 0; i < out.cols; ++i) {
        out(r, i) = static_cast<T>(static_cast<float>(unpacked_element(from, i, row, a.code)));
      }
    }
  });
}

}  // namespace troupe
