#include <algorithm>

#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/activation/activation.h"
#include "troupe/kernels/device/pack.cuh"
#include "troupe/kernels/device/reduce.cuh"

namespace troupe {
namespace {

constexpr int kRowsPerBlock = 8;
constexpr int kThreads = kRowsPerBlock * kWarpLanes;

// Which rows there are, and what multiplies each; both known to the device alone.
struct Rows {
  int64_t bound;
  const int32_t* end;  // expert_offset + E, or null
  const float* score;  // or null
  int64_t score_ld;

  __device__ bool has(int64_t r) const {
    return r < bound && (end == nullptr || r < static_cast<int64_t>(*end));
  }
  __device__ float score_of(int64_t r) const {
    return score == nullptr ? 1.0f : score[r * score_ld];
  }
};

template <class Args>
Rows rows_of(const Args& a) {
  return {a.h.rows, a.expert_offset == nullptr ? nullptr : a.expert_offset + a.num_experts,
          static_cast<const float*>(a.score.data), a.score.ld};
}

__device__ int64_t row_of_warp() {
  return int64_t{blockIdx.x} * kRowsPerBlock + threadIdx.x / kWarpLanes;
}

// One warp a row, kN units a lane at a time; h is read and u written once.
template <class T, class Functor, int kN, bool kGated>
__global__ void __launch_bounds__(kThreads)
    activation_kernel(Mat<const T> h, Mat<T> u, Rows rows, GluLimits<float> limits) {
  const int64_t r = row_of_warp(), F = u.cols;
  if (!rows.has(r)) return;
  const float score = rows.score_of(r);
  for (int64_t f = threadIdx.x % kWarpLanes * kN; f < F; f += kWarpLanes * kN) {
    const auto g = load_pack<kN>(h.row(r) + f);
    Pack<T, kN> v, out;
    if constexpr (kGated) v = load_pack<kN>(h.row(r) + F + f);
    for (int i = 0; i < kN; ++i) {
      const float gate = static_cast<float>(g.v[i]);
      float value;
      if constexpr (kGated) {
        value = glu_unit<Functor>(gate, static_cast<float>(v.v[i]), limits).value;
      } else {
        value = mlp_unit<Functor>(gate, limits.clamp).value;
      }
      out.v[i] = static_cast<T>(score * value);
    }
    store_pack(u.row(r) + f, out);
  }
}

template <class T>
struct GradViews {
  Mat<const T> h, grad_u;
  Mat<T> grad_h;
  Mat<T> u;           // data null: not wanted
  float* grad_score;  // or null
  int64_t grad_score_ld;
};

// One warp a row; each unit's h and grad_u are in registers before its results are written, which
// may be over them.
template <class T, class Functor, int kN, bool kGated>
__global__ void __launch_bounds__(kThreads)
    activation_backward_kernel(GradViews<T> m, Rows rows, GluLimits<float> limits) {
  const int64_t r = row_of_warp(), F = m.grad_u.cols;
  const int lane = threadIdx.x % kWarpLanes;
  if (!rows.has(r)) return;
  const float score = rows.score_of(r);
  float dot = 0;
  for (int64_t f = lane * kN; f < F; f += kWarpLanes * kN) {
    const auto g = load_pack<kN>(m.h.row(r) + f), grad = load_pack<kN>(m.grad_u.row(r) + f);
    Pack<T, kN> v, grad_g, grad_v, u;
    if constexpr (kGated) v = load_pack<kN>(m.h.row(r) + F + f);
    for (int i = 0; i < kN; ++i) {
      const float gate = static_cast<float>(g.v[i]), G = static_cast<float>(grad.v[i]);
      float value;
      if constexpr (kGated) {
        const auto unit = glu_unit<Functor>(gate, static_cast<float>(v.v[i]), limits);
        grad_g.v[i] = static_cast<T>(score * G * unit.slope_g);
        grad_v.v[i] = static_cast<T>(score * G * unit.slope_v);
        value = unit.value;
      } else {
        const auto unit = mlp_unit<Functor>(gate, limits.clamp);
        grad_g.v[i] = static_cast<T>(score * G * unit.slope);
        value = unit.value;
      }
      u.v[i] = static_cast<T>(score * value);
      dot += value * G;
    }
    store_pack(m.grad_h.row(r) + f, grad_g);
    if constexpr (kGated) store_pack(m.grad_h.row(r) + F + f, grad_v);
    if (m.u.data != nullptr) store_pack(m.u.row(r) + f, u);
  }
  dot = warp_sum(dot);
  if (lane == 0 && m.grad_score != nullptr) m.grad_score[r * m.grad_score_ld] = dot;
}

// f.operator()<T, Functor, kN, kGated>(): what both kernels are templates of.
template <class Body>
void dispatch(const MatRef& h, int64_t num_units, Act act, bool packed, Body&& body) {
  dispatch_float(h.dtype, [&]<class T>() {
    dispatch_act(act, [&]<class Functor>() {
      const bool wide = packed && num_units % kPackOf<T> == 0;
      const bool gated = h.cols != num_units;
      if (wide && gated) return body.template operator()<T, Functor, kPackOf<T>, true>();
      if (wide) return body.template operator()<T, Functor, kPackOf<T>, false>();
      if (gated) return body.template operator()<T, Functor, 1, true>();
      body.template operator()<T, Functor, 1, false>();
    });
  });
}

unsigned blocks_for(int64_t rows) {
  return static_cast<unsigned>((rows + kRowsPerBlock - 1) / kRowsPerBlock);
}

}  // namespace

void activation_cuda(const Activation& a, cudaStream_t stream) {
  validate(a);
  if (a.h.rows == 0 || a.u.cols == 0) return;
  const bool packed = rows_are_packed(a.h) && rows_are_packed(a.u.read());
  dispatch(a.h, a.u.cols, a.kind.act, packed, [&]<class T, class Functor, int kN, bool kGated>() {
    activation_kernel<T, Functor, kN, kGated><<<blocks_for(a.h.rows), kThreads, 0, stream>>>(
        a.h.as<T>(), a.u.as<T>(), rows_of(a), {a.kind.clamp, a.kind.offset});
  });
  TROUPE_LAUNCH_CHECK(stream);
}

void activation_backward_cuda(const ActivationBackward& a, cudaStream_t stream) {
  validate(a);
  if (a.h.rows == 0) return;  // F = 0 still has a grad_score to write.
  const bool packed = rows_are_packed(a.h) && rows_are_packed(a.grad_u) &&
                      rows_are_packed(a.grad_h.read()) && rows_are_packed(a.u.read());
  dispatch(a.h, a.grad_u.cols, a.kind.act, packed,
           [&]<class T, class Functor, int kN, bool kGated>() {
             GradViews<T> m{.h = a.h.as<T>(),
                            .grad_u = a.grad_u.as<T>(),
                            .grad_h = a.grad_h.as<T>(),
                            .u = {static_cast<T*>(a.u.data), a.u.rows, a.u.cols, a.u.ld},
                            .grad_score = static_cast<float*>(a.grad_score.data),
                            .grad_score_ld = a.grad_score.ld};
             activation_backward_kernel<T, Functor, kN, kGated>
                 <<<blocks_for(a.h.rows), kThreads, 0, stream>>>(m, rows_of(a),
                                                                 {a.kind.clamp, a.kind.offset});
           });
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
