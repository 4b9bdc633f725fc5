// The contract, and the reference: written to be read beside the rule, not to be fast.
#include "troupe/kernels/low_bit/low_bit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "troupe/core/number/e4m3.h"
#include "troupe/kernels/low_bit/low_bit_rule.h"

namespace troupe {
namespace {

constexpr std::array kE2m1 = {0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0};

bool is_mx(LowBitFormat format) {
  return format == LowBitFormat::kMxfp4;
}

// The nearest of nf4's values; on a midpoint the lower one. The tables are the rule's own.
int nf4_code(double t) {
  int code = 0;
  for (uint32_t i = 0; i < Nf4Rule::kMidpoints; ++i) code += t > Nf4Rule::midpoint(i);
  return code;
}

// The nearest magnitude; of two the one with an even code.
int e2m1_code(double t) {
  const double magnitude = std::abs(t);
  const auto apart = [&](size_t code) { return std::abs(magnitude - kE2m1[code]); };
  size_t best = 0;
  for (size_t code = 1; code < kE2m1.size(); ++code) {
    if (apart(code) < apart(best) || (apart(code) == apart(best) && code % 2 == 0)) best = code;
  }
  return static_cast<int>(best) + (std::signbit(t) ? 8 : 0);
}

int code_of(LowBitFormat format, double t) {
  switch (format) {
    case LowBitFormat::kNf4: return nf4_code(t);
    case LowBitFormat::kInt8: return static_cast<int>(std::nearbyint(std::clamp(t, -127., 127.)));
    case LowBitFormat::kFp8: return E4M3(static_cast<float>(t)).bits;
    case LowBitFormat::kMxfp4: return e2m1_code(t);
  }
  return 0;
}

double value_of(LowBitFormat format, int code) {
  switch (format) {
    case LowBitFormat::kNf4: return Nf4Rule::value(static_cast<uint32_t>(code));
    case LowBitFormat::kInt8: return static_cast<int8_t>(code);
    case LowBitFormat::kFp8: return E4M3::widen(static_cast<uint32_t>(code));
    case LowBitFormat::kMxfp4: break;
  }
  return (code >= 8 ? -1 : 1) * kE2m1[static_cast<size_t>(code & 7)];
}

// The bits to the right of element i's code in its byte.
int shift_of(LowBitFormat format, int64_t i) {
  if (low_bit_bits(format) == 8) return 0;
  return (i % 2 == 0) == is_mx(format) ? 0 : 4;
}

double exponent_scale(uint8_t exponent) {
  return std::ldexp(1.0, exponent - 127);
}

// Stores the scale of group g, and returns it.
double store_scale(const LowBitPack& a, int64_t g, double largest) {
  if (is_mx(a.format)) {
    const int exponent = largest == 0 ? 0 : std::max(std::ilogb(largest) - 2 + 127, 0);
    return exponent_scale(a.exponents[g] = static_cast<uint8_t>(exponent));
  }
  const double most = a.format == LowBitFormat::kInt8  ? 127
                      : a.format == LowBitFormat::kFp8 ? 448
                                                       : 1;
  return a.scales[g] = static_cast<float>(largest / most);
}

void pack_one_group(const LowBitPack& a, int64_t g, std::span<const double> x) {
  double largest = 0;
  for (const double v : x) largest = std::max(largest, std::abs(v));
  const double scale = store_scale(a, g, largest);
  const int64_t bits = low_bit_bits(a.format), first = g * low_bit_group(a.format);
  for (size_t j = 0; j < x.size(); ++j) {
    const int64_t i = first + static_cast<int64_t>(j);
    const double t = scale == 0 ? 0 : static_cast<float>(x[j] / scale);
    const int code = code_of(a.format, t) << shift_of(a.format, i);
    uint8_t& byte = a.values[i * bits / 8];
    byte = static_cast<uint8_t>((i * bits % 8 == 0 ? 0 : byte) | code);
  }
}

void check_room(const MatRef& x, LowBitFormat format, const void* values, const void* scales,
                const void* exponents) {
  check_matrix(x, "x", 1, x.cols, x.dtype);
  TROUPE_CHECK(x.dtype != Dtype::kF64, "f64 is not stored in few bits");
  TROUPE_CHECK(x.cols % low_bit_group(format) == 0, x.cols, "elements are not whole groups of",
               low_bit_group(format));
  TROUPE_CHECK(x.cols == 0 || values != nullptr, "no values of", x.cols, "elements");
  const void* const wanted = is_mx(format) ? exponents : scales;
  const void* const other = is_mx(format) ? scales : exponents;
  TROUPE_CHECK(x.cols == 0 || wanted != nullptr, "no scales of", x.cols, "elements");
  TROUPE_CHECK(other == nullptr, "scales are f32, and exponents of mxfp4 alone");
}

}  // namespace

int64_t low_bit_bits(LowBitFormat format) {
  return format == LowBitFormat::kNf4 || is_mx(format) ? 4 : 8;
}

int64_t low_bit_group(LowBitFormat format) {
  return format == LowBitFormat::kNf4 ? 64 : is_mx(format) ? 32 : 128;
}

int64_t low_bit_scale_bytes(LowBitFormat format) {
  return is_mx(format) ? 1 : 4;
}

int64_t low_bit_bytes(LowBitFormat format, int64_t numel) {
  const int64_t group = low_bit_group(format);
  TROUPE_CHECK(numel % group == 0, numel, "elements are not whole groups of", group);
  return numel / 8 * low_bit_bits(format) + numel / group * low_bit_scale_bytes(format);
}

void validate(const LowBitPack& a) {
  check_room(a.x, a.format, a.values, a.scales, a.exponents);
  TROUPE_CHECK(a.non_finite != nullptr);
}

void validate(const LowBitUnpack& a) {
  check_room(a.x.read(), a.format, a.values, a.scales, a.exponents);
}

int64_t bytes_moved(const LowBitPack& a) {
  return a.x.cols * size_bytes(a.x.dtype) + low_bit_bytes(a.format, a.x.cols);
}

int64_t bytes_moved(const LowBitUnpack& a) {
  return a.x.cols * size_bytes(a.x.dtype) + low_bit_bytes(a.format, a.x.cols);
}

void low_bit_pack_ref(const LowBitPack& a) {
  validate(a);
  constexpr int64_t kLongest = 128;
  std::array<double, kLongest> x{};
  const int64_t group = low_bit_group(a.format);
  dispatch_float(a.x.dtype, [&]<class T>() {
    const T* from = a.x.as<T>().data;
    for (int64_t g = 0; g < a.x.cols / group; ++g) {
      for (int64_t j = 0; j < group; ++j) {
        const double v = static_cast<float>(from[g * group + j]);
        x[static_cast<size_t>(j)] = std::isfinite(v) ? v : 0;
        if (!std::isfinite(v)) ++*a.non_finite;
      }
      pack_one_group(a, g, std::span(x).first(static_cast<size_t>(group)));
    }
  });
}

void low_bit_unpack_ref(const LowBitUnpack& a) {
  validate(a);
  const int64_t group = low_bit_group(a.format), bits = low_bit_bits(a.format);
  dispatch_float(a.x.dtype, [&]<class T>() {
    const auto x = a.x.as<T>();
    for (int64_t i = 0; i < x.cols; ++i) {
      const int byte = a.values[i * bits / 8] >> shift_of(a.format, i);
      const double scale =
          is_mx(a.format) ? exponent_scale(a.exponents[i / group]) : double{a.scales[i / group]};
      const double value = value_of(a.format, bits == 8 ? byte : byte & 15);
      x(0, i) = static_cast<T>(static_cast<float>(value * scale));
    }
  });
}

}  // namespace troupe
