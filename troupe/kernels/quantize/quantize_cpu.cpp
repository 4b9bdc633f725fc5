// The CPU path: groups are shared out over the pool; a group is a vector loop for its largest
// element and one for its values.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "troupe/kernels/quantize/quantize.h"
#include "troupe/kernels/quantize/quantize_rule.h"

namespace troupe {
namespace {

constexpr int64_t kGroupsPerRange = 512;

// max |x| by the order of bits, in which infinity and NaN are the largest.
float largest_of(const float (&x)[kQuantGroup]) {
  uint32_t top = 0;
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < kQuantGroup; ++i) {
    top = std::max(top, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  }
  return std::bit_cast<float>(top);
}

// `count` elements, the rest of the group as 0.
template <class T>
void load(const T* from, int64_t count, float (&x)[kQuantGroup]) {
  if (count == kQuantGroup) {  // A constant number of turns: vector code without an end.
#pragma omp simd
    for (int64_t i = 0; i < kQuantGroup; ++i) x[i] = static_cast<float>(from[i]);
    return;
  }
  for (int64_t i = 0; i < kQuantGroup; ++i) x[i] = i < count ? static_cast<float>(from[i]) : 0.0f;
}

template <int kBits>
void pack(const int32_t (&q)[kQuantGroup], int64_t count, uint8_t* values) {
  constexpr int64_t kBytes = kQuantGroup * kBits / 8;
  uint8_t bytes[kBytes];
#pragma omp simd
  for (int64_t i = 0; i < kBytes; ++i) {
    if constexpr (kBits == 8) {
      bytes[i] = static_cast<uint8_t>(q[i]);
    } else {
      bytes[i] = static_cast<uint8_t>((q[2 * i] & 15) | (q[2 * i + 1] & 15) << 4);
    }
  }
  std::memcpy(values, bytes, (count * kBits + 7) / 8);
}

// Returns whether the group saturated.
template <int kBits, class T>
bool quantize_group(const T* from, int64_t count, uint8_t* values, F16& stored) {
  constexpr float kMax = kBits == 8 ? 127 : 7;
  float x[kQuantGroup];
  load(from, count, x);
  const QuantScale s = quant_scale(largest_of(x), kMax);
  stored = s.stored;
  const float scale = s.scale;
  int32_t q[kQuantGroup];
#pragma omp simd
  for (int64_t i = 0; i < kQuantGroup; ++i) {
    q[i] = static_cast<int32_t>(quantized(x[i], scale, kMax));
  }
  pack<kBits>(q, count, values);
  return s.saturated;
}

template <int kBits, class T>
void dequantize_group(const uint8_t* values, float scale, T* x, int64_t count) {
  float back[kQuantGroup];
  uint8_t bytes[kQuantGroup * kBits / 8] = {};
  std::memcpy(bytes, values, (count * kBits + 7) / 8);
  if constexpr (kBits == 8) {
#pragma omp simd
    for (int64_t i = 0; i < kQuantGroup; ++i) {
      back[i] = static_cast<float>(static_cast<int8_t>(bytes[i])) * scale;
    }
  } else {
#pragma omp simd
    for (int64_t i = 0; i < kQuantGroup / 2; ++i) {
      const int32_t pair = bytes[i];  // (q + 8) mod 16 - 8 extends a nibble's sign.
      back[2 * i] = static_cast<float>(((pair + 8) & 15) - 8) * scale;
      back[2 * i + 1] = static_cast<float>((((pair >> 4) + 8) & 15) - 8) * scale;
    }
  }
  for (int64_t i = 0; i < count; ++i) put(x[i], back[i]);
}

// f(group, first element, number of elements, offset of its values) for each group of a range.
template <int kBits, class F>
void for_groups(int64_t n, const Pool& pool, F&& f) {
  pool(quantized_scales(n), kGroupsPerRange, [&](int64_t first, int64_t last) {
    for (int64_t group = first; group < last; ++group) {
      const int64_t begin = group * kQuantGroup;
      f(group, begin, std::min(kQuantGroup, n - begin), begin * kBits / 8);
    }
  });
}

template <class Body>
void dispatch(Dtype dtype, int bits, Body&& body) {
  dispatch_float(dtype, [&]<class T>() {
    dispatch_int<8, 4>(bits, [&]<int kBits>() { body.template operator()<T, kBits>(); });
  });
}

}  // namespace

void quantize_cpu(const Quantize& a, const Pool& pool) {
  validate(a);
  dispatch(a.x.dtype, a.bits, [&]<class T, int kBits>() {
    const T* x = a.x.as<T>().data;
    for_groups<kBits>(a.x.cols, pool, [&](int64_t group, int64_t begin, int64_t n, int64_t at) {
      if (quantize_group<kBits>(x + begin, n, a.values + at, a.scales[group])) {
        std::atomic_ref(*a.saturated).fetch_add(1);  // An integer: the same in any order.
      }
    });
  });
}

void dequantize_cpu(const Dequantize& a, const Pool& pool) {
  validate(a);
  dispatch(a.x.dtype, a.bits, [&]<class T, int kBits>() {
    T* x = a.x.as<T>().data;
    for_groups<kBits>(a.x.cols, pool, [&](int64_t group, int64_t begin, int64_t n, int64_t at) {
      dequantize_group<kBits>(a.values + at, static_cast<float>(a.scales[group]), x + begin, n);
    });
  });
}

}  // namespace troupe
