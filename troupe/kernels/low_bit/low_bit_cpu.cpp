// The CPU path: groups are shared out over the pool; a group is a vector loop for its largest
// element and one for its codes. Back, a group of 4 bits is read through a table of its 16 numbers.
#include <algorithm>
#include <atomic>

#include "troupe/kernels/low_bit/low_bit.h"
#include "troupe/kernels/low_bit/low_bit_rule.h"

namespace troupe {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements

// Elements as floats, 0 where one is not finite. Returns how many are not.
template <int kGroup, class T>
int32_t load(const T* from, float (&x)[kGroup]) {
  int32_t bad = 0;
#pragma omp simd reduction(+ : bad)
  for (int i = 0; i < kGroup; ++i) {
    const auto v = static_cast<float>(from[i]);
    const bool finite = low_bit_magnitude(v) < kLowBitInf;
    x[i] = finite ? v : 0.0f;
    bad += finite ? 0 : 1;
  }
  return bad;
}

template <int kGroup>
float largest_of(const float (&x)[kGroup]) {
  uint32_t top = 0;
#pragma omp simd reduction(max : top)
  for (int i = 0; i < kGroup; ++i) top = std::max(top, low_bit_magnitude(x[i]));
  return std::bit_cast<float>(top);
}

template <class Rule>
void store_codes(const uint32_t (&code)[Rule::kGroup], uint8_t* values) {
#pragma omp simd
  for (int i = 0; i < Rule::kGroup * Rule::kBits / 8; ++i) {
    if constexpr (Rule::kBits == 8) {
      values[i] = static_cast<uint8_t>(code[i]);
    } else {
      values[i] = static_cast<uint8_t>(code[2 * i] << Rule::kEvenShift |
                                       code[2 * i + 1] << (4 - Rule::kEvenShift));
    }
  }
}

// Returns how many elements are not finite.
template <class Rule, class T>
int32_t pack_group(const T* from, uint8_t* values, typename Rule::Scale& stored) {
  float x[Rule::kGroup];
  const int32_t bad = load(from, x);
  stored = Rule::scale(largest_of(x));
  const float divisor = Rule::divisor(stored);
  uint32_t code[Rule::kGroup];
#pragma omp simd
  for (int i = 0; i < Rule::kGroup; ++i) code[i] = Rule::code(low_bit_quotient(x[i], divisor));
  store_codes<Rule>(code, values);
  return bad;
}

template <class Rule, class T>
void unpack_group(const uint8_t* values, float step, T* x) {
  if constexpr (Rule::kBits == 8) {
#pragma omp simd
    for (int i = 0; i < Rule::kGroup; ++i) put(x[i], Rule::value(values[i]) * step);
  } else {
    T table[16];
    for (uint32_t code = 0; code < 16; ++code) put(table[code], Rule::value(code) * step);
    for (int i = 0; i < Rule::kGroup / 2; ++i) {
      x[2 * i] = table[values[i] >> Rule::kEvenShift & 15];
      x[2 * i + 1] = table[values[i] >> (4 - Rule::kEvenShift) & 15];
    }
  }
}

// f(group, its first element, the offset of its values) for each group of N elements.
template <class Rule, class F>
void for_groups(int64_t N, const Pool& pool, F&& f) {
  pool(N / Rule::kGroup, kGrain / Rule::kGroup, [&](int64_t first, int64_t last) {
    for (int64_t group = first; group < last; ++group) {
      const int64_t begin = group * Rule::kGroup;
      f(group, begin, begin * Rule::kBits / 8);
    }
  });
}

template <class Body>
void dispatch(Dtype dtype, LowBitFormat format, Body&& body) {
  dispatch_float(dtype, [&]<class T>() {
    dispatch_low_bit(format, [&]<class Rule>() { body.template operator()<T, Rule>(); });
  });
}

}  // namespace

void low_bit_pack_cpu(const LowBitPack& a, const Pool& pool) {
  validate(a);
  dispatch(a.x.dtype, a.format, [&]<class T, class Rule>() {
    const T* const x = a.x.as<T>().data;
    auto* const scales = low_bit_scales<Rule>(a);
    for_groups<Rule>(a.x.cols, pool, [&](int64_t group, int64_t begin, int64_t at) {
      const int32_t bad = pack_group<Rule>(x + begin, a.values + at, scales[group]);
      if (bad > 0) std::atomic_ref(*a.non_finite).fetch_add(bad);  // the same in any order
    });
  });
}

void low_bit_unpack_cpu(const LowBitUnpack& a, const Pool& pool) {
  validate(a);
  dispatch(a.x.dtype, a.format, [&]<class T, class Rule>() {
    T* const x = a.x.as<T>().data;
    const auto* const scales = low_bit_scales<Rule>(a);
    for_groups<Rule>(a.x.cols, pool, [&](int64_t group, int64_t begin, int64_t at) {
      unpack_group<Rule>(a.values + at, Rule::step(scales[group]), x + begin);
    });
  });
}

}  // namespace troupe
