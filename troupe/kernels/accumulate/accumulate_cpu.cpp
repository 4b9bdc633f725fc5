// The CPU path: ranges over the pool, vector registers within one.
#include "troupe/kernels/accumulate/accumulate.h"

namespace troupe {
namespace {

constexpr int64_t kGrain = 1 << 16;

template <bool kAdd, class T>
void accumulate(const T* x, float* sum, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const auto v = static_cast<float>(x[i]);
    sum[i] = kAdd ? sum[i] + v : v;
  }
}

}  // namespace

void accumulate_cpu(const Accumulate& a, const Pool& pool) {
  validate(a);
  dispatch_float(a.x.dtype, [&]<class T>() {
    const T* x = a.x.as<T>().data;
    pool(a.x.cols, kGrain, [&](int64_t begin, int64_t end) {
      a.add ? accumulate<true>(x, a.sum, begin, end) : accumulate<false>(x, a.sum, begin, end);
    });
  });
}

}  // namespace troupe
