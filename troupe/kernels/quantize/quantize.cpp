// The contract, and the reference: written to be read beside the rule, not to be fast.
#include "troupe/kernels/quantize/quantize.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace troupe {
namespace {

double widen(F16 x) {
  return static_cast<float>(x);
}

F16 half_of_bits(uint16_t bits) {
  F16 h;
  h.bits = bits;
  return h;
}

// Found by search: positive halves are ordered as their bits are.
F16 smallest_scale(double largest, int qmax) {
  constexpr uint16_t kLargest = 0x7bff;  // 65504
  uint16_t low = 0, high = kLargest;
  while (low < high) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    if (widen(half_of_bits(middle)) * qmax >= largest) {
      high = middle;
    } else {
      low = static_cast<uint16_t>(middle + 1);
    }
  }
  return half_of_bits(low);
}

// std::nearbyint's default mode is the right one: nearest, ties to even. For a float x and
// an fp16 scale the quotient in double is no tie unless the true one is.
int quantized(double x, double scale, int qmax) {
  if (scale == 0) return 0;
  return static_cast<int>(
      std::clamp(std::nearbyint(x / scale), -static_cast<double>(qmax), static_cast<double>(qmax)));
}

void check_bits(int bits) {
  TROUPE_CHECK(bits == 8 || bits == 4, "bits", bits, "are not 8 or 4");
}

template <class T>
void quantize_group(const Quantize& a, const T* x, int64_t begin, int64_t end) {
  const int qmax = a.bits == 8 ? 127 : 7;
  double largest = 0;
  bool finite = true;
  for (int64_t i = begin; i < end; ++i) {
    const double v = static_cast<float>(x[i]);
    finite = finite && std::isfinite(v);
    largest = std::max(largest, std::abs(v));
  }
  F16& scale = a.scales[begin / kQuantGroup];
  scale = finite ? smallest_scale(largest, qmax) : F16(std::numeric_limits<float>::quiet_NaN());
  if (finite && widen(scale) * qmax < largest) ++*a.saturated;
  for (int64_t i = begin; i < end; ++i) {
    const int q = finite ? quantized(static_cast<float>(x[i]), widen(scale), qmax) : 0;
    if (a.bits == 8) {
      a.values[i] = static_cast<uint8_t>(q);
    } else if (i % 2 == 0) {
      a.values[i / 2] = static_cast<uint8_t>(q & 15);
    } else {
      a.values[i / 2] = static_cast<uint8_t>(a.values[i / 2] | (q & 15) << 4);
    }
  }
}

}  // namespace

int64_t quantized_value_bytes(int64_t n, int bits) {
  check_bits(bits);
  return bits == 8 ? n : (n + 1) / 2;
}

int64_t quantized_scales(int64_t n) {
  return (n + kQuantGroup - 1) / kQuantGroup;
}

int64_t quantized_bytes(int64_t n, int bits) {
  return quantized_value_bytes(n, bits) + 2 * quantized_scales(n);
}

void validate(const Quantize& a) {
  check_bits(a.bits);
  check_matrix(a.x, "x", 1, a.x.cols, a.x.dtype);
  TROUPE_CHECK(a.x.dtype != Dtype::kF64, "f64 is not stored in", a.bits, "bits");
  TROUPE_CHECK(a.x.cols == 0 || (a.values != nullptr && a.scales != nullptr), "no room for",
               a.x.cols, "elements");
  TROUPE_CHECK(a.saturated != nullptr);
}

void validate(const Dequantize& a) {
  check_bits(a.bits);
  check_matrix(a.x.read(), "x", 1, a.x.cols, a.x.dtype);
  TROUPE_CHECK(a.x.dtype != Dtype::kF64, "f64 is not stored in", a.bits, "bits");
  TROUPE_CHECK(a.x.cols == 0 || (a.values != nullptr && a.scales != nullptr), "no values of",
               a.x.cols, "elements");
}

int64_t bytes_moved(const Quantize& a) {
  return a.x.cols * size_bytes(a.x.dtype) + quantized_bytes(a.x.cols, a.bits);
}

int64_t bytes_moved(const Dequantize& a) {
  return a.x.cols * size_bytes(a.x.dtype) + quantized_bytes(a.x.cols, a.bits);
}

void quantize_ref(const Quantize& a) {
  validate(a);
  dispatch_float(a.x.dtype, [&]<class T>() {
    const auto x = a.x.as<T>();
    for (int64_t begin = 0; begin < x.cols; begin += kQuantGroup) {
      quantize_group(a, x.data, begin, std::min(begin + kQuantGroup, x.cols));
    }
  });
}

void dequantize_ref(const Dequantize& a) {
  validate(a);
  dispatch_float(a.x.dtype, [&]<class T>() {
    const auto x = a.x.as<T>();
    for (int64_t i = 0; i < x.cols; ++i) {
      int q = static_cast<int8_t>(a.values[a.bits == 8 ? i : i / 2]);
      if (a.bits == 4) {
        q = i % 2 == 0 ? q & 15 : q >> 4 & 15;
        if (q > 7) q -= 16;
      }
      x(0, i) = static_cast<T>(static_cast<float>(q * widen(a.scales[i / kQuantGroup])));
    }
  });
}

}  // namespace troupe
