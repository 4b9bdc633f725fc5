#include "troupe/core/cuda_check.h"
#include "troupe/core/split_f32.h"
#include "troupe/kernels/adamw/adamw.h"
#include "troupe/kernels/device/pack.cuh"

namespace troupe {
namespace {

constexpr int kThreads = 256;
constexpr int kWide = 4;  // Elements of a thread: sixteen bytes of the float arrays.

// f32 parameters, and a rounded copy or null.
template <class C>
struct Whole {
  float* p;
  C* copy;

  template <int kN>
  __device__ Pack<float, kN> load(int64_t i) const {
    return load_pack<kN>(p + i);
  }
  template <int kN>
  __device__ void store(int64_t i, const Pack<float, kN>& param) const {
    store_pack(p + i, param);
    if (copy == nullptr) return;
    Pack<C, kN> rounded;
    for (int j = 0; j < kN; ++j) rounded.v[j] = static_cast<C>(param.v[j]);
    store_pack(copy + i, rounded);
  }
};

struct Halves {
  uint16_t *value, *low;

  template <int kN>
  __device__ Pack<float, kN> load(int64_t i) const {
    const auto upper = load_pack<kN>(value + i), lower = load_pack<kN>(low + i);
    Pack<float, kN> out;
    for (int j = 0; j < kN; ++j) out.v[j] = join_f32(upper.v[j], lower.v[j]);
    return out;
  }
  template <int kN>
  __device__ void store(int64_t i, const Pack<float, kN>& param) const {
    Pack<uint16_t, kN> upper, lower;
    for (int j = 0; j < kN; ++j) {
      const SplitF32 s = split_f32(param.v[j]);
      upper.v[j] = s.value;
      lower.v[j] = s.low;
    }
    store_pack(value + i, upper);
    store_pack(low + i, lower);
  }
};

template <class P, class G, class M>
struct Arrays {
  P param;
  const G* grad;
  M *m, *v;
  const float* scale;  // or null
  int64_t n;
};

// One thread kN elements: each array is read and written once.
template <class P, class G, class M, int kN>
__global__ void __launch_bounds__(kThreads) adamw_kernel(Arrays<P, G, M> x, AdamWStep<float> s) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kN;
  const float scale = x.scale == nullptr ? 1.0f : *x.scale;
  if (i >= x.n || !isfinite(scale)) return;

  auto param = x.param.template load<kN>(i);
  const auto grad = load_pack<kN>(x.grad + i);
  auto first = load_pack<kN>(x.m + i), second = load_pack<kN>(x.v + i);
  for (int j = 0; j < kN; ++j) {
    const float g = static_cast<float>(grad.v[j]) * scale, p = param.v[j];
    const float m = s.beta1 * static_cast<float>(first.v[j]) + s.rest1 * g;
    const float v = s.beta2 * static_cast<float>(second.v[j]) + s.rest2 * (g * g);
    const float denominator = sqrtf(v * s.unbias2) + s.eps;
    first.v[j] = static_cast<M>(m);
    second.v[j] = static_cast<M>(v);
    param.v[j] = p - s.lr * (m * s.unbias1 / denominator + s.weight_decay * p);
  }
  x.param.store(i, param);
  store_pack(x.m + i, first);
  store_pack(x.v + i, second);
}

AdamWStep<float> constants(const AdamW& a) {
  const AdamWStep<double> s = adamw_step(a);
  const auto f = [](double x) { return static_cast<float>(x); };
  return {f(s.lr),      f(s.beta1),   f(s.rest1), f(s.beta2),       f(s.rest2),
          f(s.unbias1), f(s.unbias2), f(s.eps),   f(s.weight_decay)};
}

template <class G, class M, class P>
void launch(const AdamW& a, P param, cudaStream_t stream) {
  const int64_t n = a.grad.cols;
  const bool whole = n % kWide == 0;
  const auto aligned = [](const void* p) {
    return reinterpret_cast<uintptr_t>(p) % kPackBytes == 0;
  };
  const bool packed = whole && aligned(a.param.data) && aligned(a.grad.data) && aligned(a.m.data) &&
                      aligned(a.v.data) && aligned(a.copy.data) && aligned(a.remainder.data);
  const int64_t each = kThreads * (packed ? kWide : 1), blocks = (n + each - 1) / each;
  TROUPE_CHECK(blocks <= 0x7fffffff, "elements", n);
  const Arrays<P, G, M> x{.param = param,
                          .grad = static_cast<const G*>(a.grad.data),
                          .m = static_cast<M*>(a.m.data),
                          .v = static_cast<M*>(a.v.data),
                          .scale = a.grad_scale,
                          .n = n};
  const auto kernel = packed ? adamw_kernel<P, G, M, kWide> : adamw_kernel<P, G, M, 1>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(x, constants(a));
}

}  // namespace

void adamw_cuda(const AdamW& a, cudaStream_t stream) {
  validate(a);
  if (a.grad.cols == 0) return;
  dispatch_float(a.grad.dtype, [&]<class G>() {
    const auto with_moments = [&]<class M>() {
      auto* const param = static_cast<float*>(a.param.data);
      if (in_halves(a)) {
        const Halves halves{static_cast<uint16_t*>(a.copy.data), a.remainder.data};
        return launch<G, M>(a, halves, stream);
      }
      if (a.copy.data != nullptr && a.copy.dtype == Dtype::kF16) {
        return launch<G, M>(a, Whole<F16>{param, static_cast<F16*>(a.copy.data)}, stream);
      }
      launch<G, M>(a, Whole<BF16>{param, static_cast<BF16*>(a.copy.data)}, stream);
    };
    if (a.m.dtype == Dtype::kF32) return with_moments.template operator()<float>();
    with_moments.template operator()<BF16>();
  });
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
