// The CPU path: out is written once, by rising row; the gathered rows of x come from cache or
// memory.
#include <algorithm>
#include <type_traits>

#include "troupe/kernels/permute/permute.h"

namespace troupe {
namespace {

constexpr int64_t kBytesPerRange = 1 << 16;

template <class T>
void scale_row(const T* x, Wide<T> w, int64_t width, T* out) {
  for (int64_t d = 0; d < width; ++d) out[d] = static_cast<T>(w * static_cast<Wide<T>>(x[d]));
}

}  // namespace

void permute_cpu(const Permute& a, const Pool& pool) {
  validate(a);
  const int64_t D = a.x.cols;
  const int64_t rows = a.clear_tail ? a.plan.rows : a.plan.expert_offset[a.plan.experts];
  dispatch_float64(a.x.dtype, [&]<class T>() {
    const auto x = a.x.as<T>();
    const auto out = a.out.as<T>();
    const Wide<T>* weights = static_cast<const Wide<T>*>(a.weights.data);
    const int64_t grain = kBytesPerRange / std::max<int64_t>(1, D * int64_t{sizeof(T)}) + 1;
    pool(rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int32_t src = a.plan.row_src[r];
        if (src < 0) {
          std::fill_n(out.row(r), D, static_cast<T>(Wide<T>{0}));
        } else if (weights == nullptr) {
          std::copy_n(x.row(src), D, out.row(r));
        } else {
          scale_row(x.row(src), weights[a.plan.row_slot[r]], D, out.row(r));
        }
      }
    });
  });
}

}  // namespace troupe
