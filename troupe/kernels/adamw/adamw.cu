#include "troupe/core/cuda_check.h"
#include "troupe/kernels/adamw/adamw.h"
#include "troupe/kernels/device/pack.cuh"

namespace troupe {
namespace {

constexpr int kThreads = 256;
constexpr int kWide = 4;  // Elements of a thread: sixteen bytes of the float arrays.

template <class G, class M, class C>
struct Arrays {
  float* param;
  const G* grad;
  M *m, *v;
  C* copy;             // or null
  const float* scale;  // or null
  int64_t n;
};

// One thread kN elements: each array is read and written once.
template <class G, class M, class C, int kN>
__global__ void __launch_bounds__(kThreads) adamw_kernel(Arrays<G, M, C> x, AdamWStep<float> s) {
  const int64_t i = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kN;
  const float scale = x.scale == nullptr ? 1.0f : *x.scale;
  if (i >= x.n || !isfinite(scale)) return;

  auto param = load_pack<kN>(x.param + i);
  const auto grad = load_pack<kN>(x.grad + i);
  auto first = load_pack<kN>(x.m + i), second = load_pack<kN>(x.v + i);
  Pack<C, kN> copy;
  for (int j = 0; j < kN; ++j) {
    const float g = static_cast<float>(grad.v[j]) * scale, p = param.v[j];
    const float m = s.beta1 * static_cast<float>(first.v[j]) + s.rest1 * g;
    const float v = s.beta2 * static_cast<float>(second.v[j]) + s.rest2 * (g * g);
    const float denominator = sqrtf(v * s.unbias2) + s.eps;
    first.v[j] = static_cast<M>(m);
    second.v[j] = static_cast<M>(v);
    param.v[j] = p - s.lr * (m * s.unbias1 / denominator + s.weight_decay * p);
    copy.v[j] = static_cast<C>(param.v[j]);
  }
  store_pack(x.param + i, param);
  store_pack(x.m + i, first);
  store_pack(x.v + i, second);
  if (x.copy != nullptr) store_pack(x.copy + i, copy);
}

AdamWStep<float> constants(const AdamW& a) {
  const AdamWStep<double> s = adamw_step(a);
  const auto f = [](double x) { return static_cast<float>(x); };
  return {f(s.lr),      f(s.beta1),   f(s.rest1), f(s.beta2),       f(s.rest2),
          f(s.unbias1), f(s.unbias2), f(s.eps),   f(s.weight_decay)};
}

template <class G, class M, class C>
void launch(const AdamW& a, cudaStream_t stream) {
  const int64_t n = a.param.cols;
  const bool whole = n % kWide == 0;
  const auto aligned = [](const void* p) {
    return reinterpret_cast<uintptr_t>(p) % kPackBytes == 0;
  };
  const bool packed = whole && aligned(a.param.data) && aligned(a.grad.data) && aligned(a.m.data) &&
                      aligned(a.v.data) && aligned(a.copy.data);
  const int64_t each = kThreads * (packed ? kWide : 1), blocks = (n + each - 1) / each;
  TROUPE_CHECK(blocks <= 0x7fffffff, "elements", n);
  const Arrays<G, M, C> x{.param = static_cast<float*>(a.param.data),
                          .grad = static_cast<const G*>(a.grad.data),
                          .m = static_cast<M*>(a.m.data),
                          .v = static_cast<M*>(a.v.data),
                          .copy = static_cast<C*>(a.copy.data),
                          .scale = a.grad_scale,
                          .n = n};
  const auto kernel = packed ? adamw_kernel<G, M, C, kWide> : adamw_kernel<G, M, C, 1>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(x, constants(a));
}

}  // namespace

void adamw_cuda(const AdamW& a, cudaStream_t stream) {
  validate(a);
  if (a.param.cols == 0) return;
  dispatch_float(a.grad.dtype, [&]<class G>() {
    const auto with_moments = [&]<class M>() {
      if (a.copy.data != nullptr && a.copy.dtype == Dtype::kF16) {
        return launch<G, M, F16>(a, stream);
      }
      launch<G, M, BF16>(a, stream);
    };
    if (a.m.dtype == Dtype::kF32) return with_moments.template operator()<float>();
    with_moments.template operator()<BF16>();
  });
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
