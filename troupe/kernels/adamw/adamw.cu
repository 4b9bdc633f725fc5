#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/moment8.h"
#include "troupe/core/number/split_f32.h"
#include "troupe/kernels/adamw/adamw.h"
#include "troupe/kernels/device/pack.cuh"

namespace troupe {
namespace {

constexpr int kThreads = 256;
constexpr int kWide = 4;  // Elements of a thread: sixteen bytes of the float arrays.
constexpr int kCoded = kMomentBlock / 32;  // With moments in codes: a warp has a block of them.

// kN elements from i on, of n: in one access, or (kWhole off) those that are there, the others 0.
template <int kN, bool kWhole, class T>
__device__ __forceinline__ Pack<T, kN> read(const T* p, int64_t i, int64_t n) {
  if constexpr (kWhole) {
    return load_pack<kN>(p + i);
  } else {
    Pack<T, kN> out;
    for (int j = 0; j < kN; ++j) out.v[j] = i + j < n ? p[i + j] : T();
    return out;
  }
}
template <int kN, bool kWhole, class T>
__device__ __forceinline__ void write(T* p, int64_t i, int64_t n, const Pack<T, kN>& x) {
  if constexpr (kWhole) {
    store_pack(p + i, x);
  } else {
    for (int j = 0; j < kN && i + j < n; ++j) p[i + j] = x.v[j];
  }
}

// f32 parameters, and a rounded copy or null.
template <class C>
struct Whole {
  float* p;
  C* copy;

  template <int kN, bool kWhole>
  __device__ Pack<float, kN> load(int64_t i, int64_t n) const {
    return read<kN, kWhole>(p, i, n);
  }
  template <int kN, bool kWhole>
  __device__ void store(int64_t i, int64_t n, const Pack<float, kN>& param) const {
    write<kN, kWhole>(p, i, n, param);
    if (copy == nullptr) return;
    Pack<C, kN> rounded;
    for (int j = 0; j < kN; ++j) rounded.v[j] = static_cast<C>(param.v[j]);
    write<kN, kWhole>(copy, i, n, rounded);
  }
};

struct Halves {
  uint16_t *value, *low;

  template <int kN, bool kWhole>
  __device__ Pack<float, kN> load(int64_t i, int64_t n) const {
    const auto upper = read<kN, kWhole>(value, i, n), lower = read<kN, kWhole>(low, i, n);
    Pack<float, kN> out;
    for (int j = 0; j < kN; ++j) out.v[j] = join_f32(upper.v[j], lower.v[j]);
    return out;
  }
  template <int kN, bool kWhole>
  __device__ void store(int64_t i, int64_t n, const Pack<float, kN>& param) const {
    Pack<uint16_t, kN> upper, lower;
    for (int j = 0; j < kN; ++j) {
      const SplitF32 s = split_f32(param.v[j]);
      upper.v[j] = s.value;
      lower.v[j] = s.low;
    }
    write<kN, kWhole>(value, i, n, upper);
    write<kN, kWhole>(low, i, n, lower);
  }
};

template <int kN>
struct Moments {
  Pack<float, kN> first, second;
};

template <class M>
struct Floats {
  M *m, *v;

  template <int kN, bool kWhole>
  __device__ Moments<kN> load(int64_t i, int64_t n) const {
    const auto a = read<kN, kWhole>(m, i, n), b = read<kN, kWhole>(v, i, n);
    Moments<kN> out;
    for (int j = 0; j < kN; ++j) {
      out.first.v[j] = static_cast<float>(a.v[j]);
      out.second.v[j] = static_cast<float>(b.v[j]);
    }
    return out;
  }
  template <int kN, bool kWhole>
  __device__ void store(int64_t i, int64_t n, unsigned, const Moments<kN>& x) const {
    Pack<M, kN> a, b;
    for (int j = 0; j < kN; ++j) {
      a.v[j] = static_cast<M>(x.first.v[j]);
      b.v[j] = static_cast<M>(x.second.v[j]);
    }
    write<kN, kWhole>(m, i, n, a);
    write<kN, kWhole>(v, i, n, b);
  }
};

// A warp's elements are a block: its largest numbers are found by shuffles.
struct Codes {
  uint8_t *m, *v;
  float *m_scale, *v_scale;

  template <int kN, bool kWhole>
  __device__ Moments<kN> load(int64_t i, int64_t n) const {
    const auto a = read<kN, kWhole>(m, i, n), b = read<kN, kWhole>(v, i, n);
    const float a_scale = m_scale[i / kMomentBlock], b_scale = v_scale[i / kMomentBlock];
    Moments<kN> out;
    for (int j = 0; j < kN; ++j) {
      out.first.v[j] = first_moment(a.v[j], a_scale);
      out.second.v[j] = second_moment(b.v[j], b_scale);
    }
    return out;
  }
  // `lanes` of the warp have elements. Those past the end are 0.
  template <int kN, bool kWhole>
  __device__ void store(int64_t i, int64_t n, unsigned lanes, const Moments<kN>& x) const {
    unsigned a_largest = 0, b_largest = 0;
    for (int j = 0; j < kN; ++j) {
      a_largest = max(a_largest, __float_as_uint(x.first.v[j]) & 0x7fffffffu);
      b_largest = max(b_largest, __float_as_uint(x.second.v[j]) & 0x7fffffffu);
    }
    const float a_scale = moment_scale(__reduce_max_sync(lanes, a_largest));
    const float b_scale = moment_scale(__reduce_max_sync(lanes, b_largest));
    const float a_inverse = moment_inverse(a_scale), b_inverse = moment_inverse(b_scale);
    Pack<uint8_t, kN> a, b;
    for (int j = 0; j < kN; ++j) {
      const MomentDither dither = moment_dither(x.first.v[j], x.second.v[j]);
      a.v[j] = first_moment_code(x.first.v[j], a_inverse, dither.first);
      b.v[j] = second_moment_code(x.second.v[j], b_inverse, dither.second);
    }
    write<kN, kWhole>(m, i, n, a);
    write<kN, kWhole>(v, i, n, b);
    if (threadIdx.x % 32 != 0) return;
    m_scale[i / kMomentBlock] = a_scale;
    v_scale[i / kMomentBlock] = b_scale;
  }
};

template <class P, class G, class S>
struct Arrays {
  P param;
  const G* grad;
  S moments;
  const float* scale;                 // or null
  const AdamWStep<float>* constants;  // or null: those of the launch
  int64_t n;
};

// One thread kN elements: each array is read and written once. What is fused is said, so that each
// form of the kernel has the same bits.
template <class P, class G, class S, int kN, bool kWhole>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(Arrays<P, G, S> x, AdamWStep<float> given) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kN;
  const float scale = x.scale == nullptr ? 1.0f : *x.scale;
  const unsigned lanes = __ballot_sync(~0u, i < x.n);
  if (i >= x.n || !isfinite(scale)) return;
  const AdamWStep<float> s = x.constants == nullptr ? given : *x.constants;

  auto param = x.param.template load<kN, kWhole>(i, x.n);
  const auto grad = read<kN, kWhole>(x.grad, i, x.n);
  auto moments = x.moments.template load<kN, kWhole>(i, x.n);
  for (int j = 0; j < kN; ++j) {
    const float g = static_cast<float>(grad.v[j]) * scale, p = param.v[j];
    const float m = fmaf(s.beta1, moments.first.v[j], s.rest1 * g);
    const float v = fmaf(s.beta2, moments.second.v[j], s.rest2 * (g * g));
    const float denominator = sqrtf(v * s.unbias2) + s.eps;
    moments.first.v[j] = m;
    moments.second.v[j] = v;
    param.v[j] = fmaf(-s.lr, fmaf(s.weight_decay, p, m * s.unbias1 / denominator), p);
  }
  x.param.template store<kN, kWhole>(i, x.n, param);
  x.moments.template store<kN, kWhole>(i, x.n, lanes, moments);
}

// kN elements a thread; without packs kRest.
template <class G, int kN, int kRest, class P, class S>
void launch(const AdamW& a, P param, S moments, cudaStream_t stream) {
  const int64_t n = a.grad.cols;
  const auto aligned = [](const void* p) {
    return reinterpret_cast<uintptr_t>(p) % (kN * sizeof(float)) == 0;
  };
  const bool packed = n % kN == 0 && aligned(a.param.data) && aligned(a.grad.data) &&
                      aligned(a.m.data) && aligned(a.v.data) && aligned(a.copy.data) &&
                      aligned(a.remainder.data) && aligned(a.m8.codes.data) &&
                      aligned(a.v8.codes.data);
  const int64_t each = kThreads * (packed ? kN : kRest), blocks = (n + each - 1) / each;
  TROUPE_CHECK(blocks <= 0x7fffffff, "elements", n);
  const Arrays<P, G, S> x{.param = param,
                          .grad = static_cast<const G*>(a.grad.data),
                          .moments = moments,
                          .scale = a.grad_scale,
                          .constants = a.constants,
                          .n = n};
  const auto step = a.constants == nullptr ? rounded<float>(adamw_step(a)) : AdamWStep<float>{};
  const auto kernel =
      packed ? adamw_kernel<P, G, S, kN, true> : adamw_kernel<P, G, S, kRest, kRest == 1>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(x, step);
}

template <class G, class P>
void with_moments(const AdamW& a, P param, cudaStream_t stream) {
  if (in_codes(a)) {
    const Codes codes{a.m8.codes.data, a.v8.codes.data, a.m8.scales.data, a.v8.scales.data};
    return launch<G, kCoded, kCoded>(a, param, codes, stream);
  }
  const auto floats = [&]<class M>() {
    return Floats<M>{static_cast<M*>(a.m.data), static_cast<M*>(a.v.data)};
  };
  if (a.m.dtype == Dtype::kF32) {
    return launch<G, kWide, 1>(a, param, floats.template operator()<float>(), stream);
  }
  launch<G, kWide, 1>(a, param, floats.template operator()<BF16>(), stream);
}

}  // namespace

void adamw_cuda(const AdamW& a, cudaStream_t stream) {
  validate(a);
  if (a.grad.cols == 0) return;
  dispatch_float(a.grad.dtype, [&]<class G>() {
    auto* const param = static_cast<float*>(a.param.data);
    if (in_halves(a)) {
      const Halves halves{static_cast<uint16_t*>(a.copy.data), a.remainder.data};
      return with_moments<G>(a, halves, stream);
    }
    if (a.copy.data != nullptr && a.copy.dtype == Dtype::kF16) {
      return with_moments<G>(a, Whole<F16>{param, static_cast<F16*>(a.copy.data)}, stream);
    }
    with_moments<G>(a, Whole<BF16>{param, static_cast<BF16*>(a.copy.data)}, stream);
  });
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
