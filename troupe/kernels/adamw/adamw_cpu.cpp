// The CPU path: blocks of elements are shared out; each is one vector loop over all five arrays,
// and one more, in the first cache, for the copy.
#include <algorithm>
#include <cmath>

#include "troupe/kernels/adamw/adamw.h"

namespace troupe {
namespace {

// Blocks, not elements, are shared out: which elements a vector holds, and which are left over at
// an end, is then the same for any number of threads.
constexpr int64_t kBlock = 4096;

template <class W, class G, class M>
struct Arrays {
  W* param;
  const G* grad;
  M *m, *v;
};

template <class W, class G, class M>
void update(Arrays<W, G, M> x, int64_t begin, int64_t end, AdamWStep<W> s, W scale) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const W g = static_cast<W>(x.grad[i]) * scale;
    const W m = s.beta1 * static_cast<W>(x.m[i]) + s.rest1 * g;
    const W v = s.beta2 * static_cast<W>(x.v[i]) + s.rest2 * (g * g);
    const W p = x.param[i];
    const W denominator = std::sqrt(v * s.unbias2) + s.eps;
    put(x.m[i], m);
    put(x.v[i], v);
    x.param[i] = p - s.lr * (m * s.unbias1 / denominator + s.weight_decay * p);
  }
}

template <class C>
void copy_rounded(const float* from, C* to, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) put(to[i], from[i]);
}

template <class W>
AdamWStep<W> constants(const AdamW& a) {
  const AdamWStep<double> s = adamw_step(a);
  const auto w = [](double x) { return static_cast<W>(x); };
  return {w(s.lr),      w(s.beta1),   w(s.rest1), w(s.beta2),       w(s.rest2),
          w(s.unbias1), w(s.unbias2), w(s.eps),   w(s.weight_decay)};
}

template <class W, class G, class M>
void run(const AdamW& a, const Pool& pool, float scale) {
  const AdamWStep<W> step = constants<W>(a);
  const Arrays<W, G, M> x{static_cast<W*>(a.param.data), static_cast<const G*>(a.grad.data),
                          static_cast<M*>(a.m.data), static_cast<M*>(a.v.data)};
  const int64_t n = a.param.cols;
  pool((n + kBlock - 1) / kBlock, 4, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kBlock, end = std::min(begin + kBlock, n);
      update(x, begin, end, step, static_cast<W>(scale));
      if constexpr (std::is_same_v<W, float>) {
        if (a.copy.data == nullptr) continue;
        if (a.copy.dtype == Dtype::kBF16) {
          copy_rounded(x.param, static_cast<BF16*>(a.copy.data), begin, end);
        } else {
          copy_rounded(x.param, static_cast<F16*>(a.copy.data), begin, end);
        }
      }
    }
  });
}

}  // namespace

void adamw_cpu(const AdamW& a, const Pool& pool) {
  validate(a);
  const float scale = a.grad_scale == nullptr ? 1 : *a.grad_scale;
  if (!std::isfinite(scale)) return;
  if (a.param.dtype == Dtype::kF64) return run<double, double, double>(a, pool, scale);
  dispatch_float(a.grad.dtype, [&]<class G>() {
    if (a.m.dtype == Dtype::kF32) return run<float, G, float>(a, pool, scale);
    run<float, G, BF16>(a, pool, scale);
  });
}

}  // namespace troupe
