// The CPU path: blocks of elements are shared out; each is one vector loop over all five arrays,
// and one more, in the first cache, for a copy.
#include <algorithm>
#include <bit>
#include <cmath>

#include "troupe/core/number/moment8.h"
#include "troupe/core/number/split_f32.h"
#include "troupe/kernels/adamw/adamw.h"

namespace troupe {
namespace {

// Blocks, not elements, are shared out: which elements a vector holds, and which are left over at
// an end, is then the same for any number of threads.
constexpr int64_t kBlock = 4096;

template <class W>
struct Whole {
  W* p;
  Whole at(int64_t i) const { return {p + i}; }
  TROUPE_INLINE W load(int64_t i) const { return p[i]; }
  TROUPE_INLINE void store(int64_t i, W value) const { p[i] = value; }
};

struct Halves {
  BF16* value;
  uint16_t* low;
  Halves at(int64_t i) const { return {value + i, low + i}; }
  TROUPE_INLINE float load(int64_t i) const { return join_f32(value[i].bits, low[i]); }
  TROUPE_INLINE void store(int64_t i, float p) const {
    const SplitF32 s = split_f32(p);
    value[i].bits = s.value;
    low[i] = s.low;
  }
};

template <class P, class G, class M>
struct Arrays {
  P param;
  const G* grad;
  M *m, *v;
};

template <class W, class P, class G, class M>
void update(Arrays<P, G, M> x, int64_t begin, int64_t end, AdamWStep<W> s, W scale) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const W g = static_cast<W>(x.grad[i]) * scale;
    const W m = s.beta1 * static_cast<W>(x.m[i]) + s.rest1 * g;
    const W v = s.beta2 * static_cast<W>(x.v[i]) + s.rest2 * (g * g);
    const W p = x.param.load(i);
    const W denominator = std::sqrt(v * s.unbias2) + s.eps;
    put(x.m[i], m);
    put(x.v[i], v);
    x.param.store(i, p - s.lr * (m * s.unbias1 / denominator + s.weight_decay * p));
  }
}

template <class C>
void copy_rounded(const float* from, C* to, int64_t begin, int64_t end) {
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) put(to[i], from[i]);
}

template <class W>
AdamWStep<W> constants(const AdamW& a) {
  return a.constants != nullptr ? rounded<W>(*a.constants) : rounded<W>(adamw_step(a));
}

// The copy of what update() wrote, while it is in the cache.
void round_copy(const AdamW& a, Whole<float> from, int64_t begin, int64_t end) {
  if (a.copy.data == nullptr) return;
  if (a.copy.dtype == Dtype::kBF16) {
    copy_rounded(from.p, static_cast<BF16*>(a.copy.data), begin, end);
  } else {
    copy_rounded(from.p, static_cast<F16*>(a.copy.data), begin, end);
  }
}
void round_copy(const AdamW&, Whole<double>, int64_t, int64_t) {}
void round_copy(const AdamW&, Halves, int64_t, int64_t) {}

template <class W, class P, class G, class M>
void run(const AdamW& a, P param, const Pool& pool, float scale) {
  const AdamWStep<W> step = constants<W>(a);
  const Arrays<P, G, M> x{param, static_cast<const G*>(a.grad.data), static_cast<M*>(a.m.data),
                          static_cast<M*>(a.v.data)};
  const int64_t n = a.grad.cols;
  pool((n + kBlock - 1) / kBlock, 4, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kBlock, end = std::min(begin + kBlock, n);
      update(x, begin, end, step, static_cast<W>(scale));
      round_copy(a, param, begin, end);
    }
  });
}

// Codes of a block of moments into floats, and back.
void read_codes(const AdamW& a, int64_t begin, int64_t count, float* m, float* v) {
  const int64_t block = begin / kMomentBlock;
  const float m_scale = a.m8.scales(0, block), v_scale = a.v8.scales(0, block);
  const uint8_t *const m8 = a.m8.codes.data + begin, *const v8 = a.v8.codes.data + begin;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    m[i] = first_moment(m8[i], m_scale);
    v[i] = second_moment(v8[i], v_scale);
  }
}

void write_codes(const AdamW& a, int64_t begin, int64_t count, const float* m, const float* v) {
  uint32_t m_largest = 0, v_largest = 0;
#pragma omp simd reduction(max : m_largest, v_largest)
  for (int64_t i = 0; i < count; ++i) {
    m_largest = std::max(m_largest, std::bit_cast<uint32_t>(m[i]) & 0x7fffffffu);
    v_largest = std::max(v_largest, std::bit_cast<uint32_t>(v[i]) & 0x7fffffffu);
  }
  const int64_t block = begin / kMomentBlock;
  const float m_scale = moment_scale(m_largest), v_scale = moment_scale(v_largest);
  a.m8.scales(0, block) = m_scale;
  a.v8.scales(0, block) = v_scale;
  const float m_inverse = moment_inverse(m_scale), v_inverse = moment_inverse(v_scale);
  uint8_t *const m8 = a.m8.codes.data + begin, *const v8 = a.v8.codes.data + begin;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const MomentDither dither = moment_dither(m[i], v[i]);
    m8[i] = first_moment_code(m[i], m_inverse, dither.first);
    v8[i] = second_moment_code(v[i], v_inverse, dither.second);
  }
}

template <class P, class G>
void run_codes(const AdamW& a, P param, const Pool& pool, float scale) {
  const AdamWStep<float> step = constants<float>(a);
  const auto* const grad = static_cast<const G*>(a.grad.data);
  const int64_t n = a.grad.cols;
  pool(moment_blocks(n), 64, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kMomentBlock, count = std::min(kMomentBlock, n - begin);
      float m[kMomentBlock], v[kMomentBlock];
      read_codes(a, begin, count, m, v);
      update(Arrays<P, G, float>{param.at(begin), grad + begin, m, v}, 0, count, step, scale);
      write_codes(a, begin, count, m, v);
      round_copy(a, param, begin, begin + count);
    }
  });
}

template <class P>
void run_float(const AdamW& a, P param, const Pool& pool, float scale) {
  dispatch_float(a.grad.dtype, [&]<class G>() {
    if (in_codes(a)) return run_codes<P, G>(a, param, pool, scale);
    if (a.m.dtype == Dtype::kF32) return run<float, P, G, float>(a, param, pool, scale);
    run<float, P, G, BF16>(a, param, pool, scale);
  });
}

}  // namespace

void adamw_cpu(const AdamW& a, const Pool& pool) {
  validate(a);
  const float scale = a.grad_scale == nullptr ? 1 : *a.grad_scale;
  if (!std::isfinite(scale)) return;
  if (in_halves(a)) {
    const Halves halves{static_cast<BF16*>(a.copy.data), a.remainder.data};
    return run_float(a, halves, pool, scale);
  }
  if (a.param.dtype == Dtype::kF64) {
    const Whole<double> whole{static_cast<double*>(a.param.data)};
    return run<double, Whole<double>, double, double>(a, whole, pool, scale);
  }
  run_float(a, Whole<float>{static_cast<float*>(a.param.data)}, pool, scale);
}

}  // namespace troupe
