// The CPU path: rows of groups are shared out over the pool; a row of a group is a vector loop for
// its largest element and one for its bytes.
#include <algorithm>

#include "troupe/kernels/fp8/fp8.h"
#include "troupe/kernels/fp8/fp8_rule.h"

namespace troupe {
namespace {

constexpr int64_t kGrain = 1 << 14;  // elements

// max |x| by the order of bits, in which infinity and NaN are the largest.
template <class T>
uint32_t top_of(const T* x, int64_t n, float factor) {
  uint32_t top = 0;
#pragma omp simd reduction(max : top)
  for (int64_t i = 0; i < n; ++i) {
    top = std::max(top, magnitude(static_cast<float>(x[i]) * factor));
  }
  return top;
}

template <class T>
void to_bytes(const T* x, int64_t n, float factor, const Fp8Scale& s, uint8_t* bytes) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    bytes[i] = static_cast<uint8_t>(fp8_byte(static_cast<float>(x[i]) * factor, s));
  }
}

template <class T>
void from_bytes(const uint8_t* bytes, int64_t n, float scale, T* x) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) put(x[i], E4M3::widen(bytes[i]) * scale);
}

// f(rows of x, first column, number of columns, row of scales, column of scales) for each group.
template <class F>
void for_groups(const Fp8Groups& groups, int64_t R, int64_t C, const Pool& pool, F&& f) {
  const int64_t columns = groups.columns == kWholeRow ? std::max<int64_t>(C, 1) : groups.columns;
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, C * groups.rows));
  pool(scale_rows(groups, R), grain, [&](int64_t first, int64_t last) {
    for (int64_t g = first; g < last; ++g) {
      const Fp8Rows rows = fp8_rows(groups, R, g);
      if (rows.begin == rows.end) continue;
      for (int64_t c = 0; c < C; c += columns) f(rows, c, std::min(columns, C - c), g, c / columns);
    }
  });
}

}  // namespace

void quantize_fp8_cpu(const QuantizeFp8& a, const Pool& pool) {
  validate(a);
  const auto factor = [&](int64_t r) { return a.factor == nullptr ? 1.0f : a.factor[r]; };
  dispatch_float(a.x.dtype, [&]<class T>() {
    const auto x = a.x.as<T>();
    for_groups(a.groups, x.rows, x.cols, pool,
               [&](Fp8Rows rows, int64_t c, int64_t n, int64_t row, int64_t column) {
                 uint32_t top = 0;
                 if (a.largest != nullptr) {
                   top = magnitude(a.largest[fp8_part(a.groups, rows.begin)]);
                 }
                 for (int64_t r = rows.begin; a.largest == nullptr && r < rows.end; ++r) {
                   top = std::max(top, top_of(x.row(r) + c, n, factor(r)));
                 }
                 const Fp8Scale scale = fp8_scale(top);
                 a.scales(row, column) = scale.scale;
                 for (int64_t r = rows.begin; r < rows.end; ++r) {
                   to_bytes(x.row(r) + c, n, factor(r), scale, a.bytes.row(r) + c);
                 }
               });
  });
}

void dequantize_fp8_cpu(const DequantizeFp8& a, const Pool& pool) {
  validate(a);
  dispatch_float(a.x.dtype, [&]<class T>() {
    const auto x = a.x.as<T>();
    for_groups(a.groups, x.rows, x.cols, pool,
               [&](Fp8Rows rows, int64_t c, int64_t n, int64_t row, int64_t column) {
                 const float scale = a.scales(row, column);
                 for (int64_t r = rows.begin; r < rows.end; ++r) {
                   from_bytes(a.bytes.row(r) + c, n, scale, x.row(r) + c);
                 }
               });
  });
}

}  // namespace troupe
