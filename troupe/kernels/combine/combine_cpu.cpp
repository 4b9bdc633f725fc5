// The CPU path: sums of kBlock columns stay in registers and first-level cache while the token's
// rows are added one after the other, so y is read once and out written once.
#include <algorithm>

#include "troupe/kernels/combine/combine.h"

namespace troupe {
namespace {

constexpr int64_t kBlock = 256;
constexpr int64_t kBytesPerRange = 1 << 16;

template <class T>
void add_row(const T* row, Wide<T> w, int64_t width, Wide<T>* sum) {
  for (int64_t d = 0; d < width; ++d) sum[d] += w * static_cast<Wide<T>>(row[d]);
}

template <class T, class A>
void combine_rows(const Combine& a, int64_t begin, int64_t end) {
  const auto y = a.y.as<T>();
  const auto out = a.out.as<T>();
  const auto addend = a.addend.data == nullptr ? Mat<const A>{} : a.addend.as<A>();
  const auto* weights = static_cast<const Wide<T>*>(a.weights.data);
  const int64_t K = a.plan.choices;
  Wide<T> sum[kBlock];
  for (int64_t t = begin; t < end; ++t) {
    for (int64_t d0 = 0; d0 < out.cols; d0 += kBlock) {
      const int64_t width = std::min(kBlock, out.cols - d0);
      std::fill_n(sum, width, Wide<T>{0});
      for (int64_t s = t * K; s < (t + 1) * K; ++s) {
        const int32_t row = a.plan.slot_row[s];
        if (row < 0) continue;
        add_row(y.row(row) + d0, weights == nullptr ? Wide<T>{1} : weights[s], width, sum);
      }
      if (addend.data != nullptr) {
        const A* more = addend.row(t) + d0;
        for (int64_t d = 0; d < width; ++d) sum[d] += static_cast<Wide<T>>(more[d]);
      }
      T* to = out.row(t) + d0;
      for (int64_t d = 0; d < width; ++d) to[d] = static_cast<T>(sum[d]);
    }
  }
}

}  // namespace

void combine_cpu(const Combine& a, const Pool& pool) {
  validate(a);
  dispatch_float64(a.y.dtype, [&]<class T>() {
    const int64_t row_bytes = a.plan.choices * a.out.cols * int64_t{sizeof(T)};
    const int64_t grain = kBytesPerRange / std::max<int64_t>(1, row_bytes) + 1;
    const bool wide_addend = a.addend.data != nullptr && a.addend.dtype == Dtype::kF32;
    pool(a.out.rows, grain, [&](int64_t begin, int64_t end) {
      wide_addend ? combine_rows<T, float>(a, begin, end) : combine_rows<T, T>(a, begin, end);
    });
  });
}

}  // namespace troupe
