// The CPU path: blocks are shared out over the pool, a block is one vector sum in double.
#include <algorithm>

#include "troupe/kernels/grad_norm/grad_norm.h"

namespace troupe {
namespace {

template <class T>
double block_sum(const T* x, int64_t n) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    const double v = static_cast<Wide<T>>(x[i]);
    sum += v * v;
  }
  return sum;
}

}  // namespace

void sum_squares_cpu(const SumSquares& a, const Pool& pool) {
  validate(a);
  const int64_t n = a.x.cols, blocks = (n + kSumBlock - 1) / kSumBlock;
  auto* sums = static_cast<double*>(a.workspace);
  dispatch_float64(a.x.dtype, [&]<class T>() {
    const T* x = a.x.as<T>().data;
    pool(blocks, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        sums[i] = block_sum(x + i * kSumBlock, std::min(kSumBlock, n - i * kSumBlock));
      }
    });
  });
  double total = 0;
  for (int64_t i = 0; i < blocks; ++i) total += sums[i];
  *a.out = (a.add ? *a.out : 0) + total;
}

void clip_scale_cpu(const ClipScale& a, const Pool& /*pool*/) {
  clip_scale_ref(a);
}

}  // namespace troupe
