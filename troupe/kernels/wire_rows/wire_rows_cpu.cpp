// The CPU path: rows are shared out over the pool; a group, or a row of e4m3, is a vector loop for
// its largest element and one for its bytes.
#include <algorithm>
#include <cstring>

#include "troupe/core/number/fp8_scale.h"
#include "troupe/kernels/wire_rows/wire_rows.h"
#include "troupe/kernels/wire_rows/wire_rows_rule.h"

namespace troupe {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements

// `count` elements, the rest of the group as 0.
template <class T>
void load(const T* from, int64_t count, float (&x)[kWireGroup]) {
  if (count == kWireGroup) {  // A constant number of turns: vector code without an end.
#pragma omp simd
    for (int64_t i = 0; i < kWireGroup; ++i) x[i] = static_cast<float>(from[i]);
    return;
  }
  for (int64_t i = 0; i < kWireGroup; ++i) x[i] = i < count ? static_cast<float>(from[i]) : 0.0f;
}

// Returns the scale's code.
template <class T>
uint16_t pack_group(const T* from, int64_t count, uint8_t* to) {
  float x[kWireGroup];
  load(from, count, x);
  uint32_t top = 0;
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < kWireGroup; ++i) {
    top = std::max(top, std::bit_cast<uint32_t>(x[i]) & 0x7fffffffu);
  }
  const WireScale s = wire_scale(top);
  uint8_t bytes[kWireGroup];
#pragma omp simd
  for (int64_t i = 0; i < kWireGroup; ++i) bytes[i] = static_cast<uint8_t>(wire_bits(x[i], s));
  std::memcpy(to, bytes, static_cast<size_t>(count));
  return s.code;
}

template <class T>
void pack_row(const T* from, int64_t width, const WireRow& row, uint8_t* to) {
  uint8_t* const scales = to + row.scales_at;
  std::memset(to + width, 0, static_cast<size_t>(row.scales_at - width));
  bool finite = true;
  for (int64_t g = 0; g < row.groups; ++g) {
    const int64_t begin = g * kWireGroup;
    const uint16_t code = pack_group(from + begin, std::min(kWireGroup, width - begin), to + begin);
    finite = finite && code != kWireNan;
    std::memcpy(scales + 2 * g, &code, sizeof code);
  }
  for (int64_t g = 0; g < row.groups && !finite; ++g) {
    std::memcpy(scales + 2 * g, &kWireNan, sizeof kWireNan);
  }
  const int64_t end = row.scales_at + 2 * row.groups;
  std::memset(to + end, 0, static_cast<size_t>(row.bytes - end));
}

template <class T>
void unpack_group(const uint8_t* from, int64_t count, float scale, T* to) {
  uint8_t bytes[kWireGroup] = {};
  std::memcpy(bytes, from, static_cast<size_t>(count));
  float x[kWireGroup];
#pragma omp simd
  for (int64_t i = 0; i < kWireGroup; ++i) {
    x[i] = static_cast<float>(static_cast<int8_t>(bytes[i])) * scale;
  }
  if (count == kWireGroup) {
#pragma omp simd
    for (int64_t i = 0; i < kWireGroup; ++i) put(to[i], x[i]);
    return;
  }
  for (int64_t i = 0; i < count; ++i) put(to[i], x[i]);
}

template <class T>
void pack_e4m3_row(const T* from, int64_t width, const WireRow& row, uint8_t* to) {
  if (width == 0) return;
  uint32_t top = 0;
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < width; ++i) {
    top = std::max(top, std::bit_cast<uint32_t>(static_cast<float>(from[i])) & 0x7fffffffu);
  }
  const Fp8Scale s = fp8_scale(top);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) {
    to[i] = static_cast<uint8_t>(fp8_byte(static_cast<float>(from[i]), s));
  }
  std::memset(to + width, 0, static_cast<size_t>(row.bytes - width));
  std::memcpy(to + row.scales_at, &s.scale, sizeof s.scale);
}

template <class T>
void unpack_e4m3_row(const uint8_t* from, int64_t width, const WireRow& row, T* to) {
  if (width == 0) return;
  float scale = 0;
  std::memcpy(&scale, from + row.scales_at, sizeof scale);
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) put(to[i], E4M3::widen(from[i]) * scale);
}

template <class T>
void unpack_row(const uint8_t* from, int64_t width, const WireRow& row, T* to) {
  for (int64_t g = 0; g < row.groups; ++g) {
    const int64_t begin = g * kWireGroup;
    uint16_t code = 0;
    std::memcpy(&code, from + row.scales_at + 2 * g, sizeof code);
    unpack_group(from + begin, std::min(kWireGroup, width - begin), wire_scale_of(code),
                 to + begin);
  }
}

int64_t rows_at_once(int64_t width) {
  return std::max<int64_t>(1, kGrain / std::max<int64_t>(1, width));
}

}  // namespace

void pack_rows_cpu(const PackRows& a, const Pool& pool) {
  validate(a);
  const WireRow row = wire_row(a.x.cols, a.code);
  dispatch_float64(a.x.dtype, [&]<class T>() {
    const auto x = a.x.as<T>();
    pool(a.packed.rows, rows_at_once(x.cols), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t from = a.index == nullptr ? r : a.index[r];
        TROUPE_CHECK(0 <= from && from < x.rows, "index", from, "must be below", x.rows);
        a.code == WireCode::kE4m3 ? pack_e4m3_row(x.row(from), x.cols, row, a.packed.row(r))
                                  : pack_row(x.row(from), x.cols, row, a.packed.row(r));
      }
    });
  });
}

void unpack_rows_cpu(const UnpackRows& a, const Pool& pool) {
  validate(a);
  const WireRow row = wire_row(a.out.cols, a.code);
  dispatch_float64(a.out.dtype, [&]<class T>() {
    const auto out = a.out.as<T>();
    pool(out.rows, rows_at_once(out.cols), [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        const uint8_t* from = a.packed.row(r);
        a.code == WireCode::kE4m3 ? unpack_e4m3_row(from, out.cols, row, out.row(r))
                                  : unpack_row(from, out.cols, row, out.row(r));
      }
    });
  });
}

}  // namespace troupe
