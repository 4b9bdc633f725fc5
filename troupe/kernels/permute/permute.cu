#include "troupe/core/device/cuda_check.h"
#include "troupe/kernels/device/pack.cuh"
#include "troupe/kernels/device/token_grid.h"
#include "troupe/kernels/permute/permute.h"

namespace troupe {
namespace {

template <class T, int kN>
__device__ Pack<T, kN> scaled(const Pack<T, kN>& x, float w) {
  Pack<T, kN> out;
#pragma unroll
  for (int i = 0; i < kN; ++i) out.v[i] = static_cast<T>(w * static_cast<float>(x.v[i]));
  return out;
}

// Some lanes a token. A token's row is read once and written to its K rows: R + T rows of traffic
// where a gather by row would move 2 R. Bound by the writes.
template <class T, int kN>
__global__ void __launch_bounds__(kTokenGridThreads)
    permute_kernel(PlanRef plan, Mat<const T> x, const float* weights, Mat<T> out) {
  const int64_t t = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (t >= plan.tokens) return;
  const int K = static_cast<int>(plan.choices), packs = static_cast<int>(x.cols / kN);
  const int32_t* rows = plan.slot_row + t * K;
  for (int p = static_cast<int>(threadIdx.x); p < packs; p += static_cast<int>(blockDim.x)) {
    const Pack<T, kN> value = load_pack<kN>(x.row(t) + p * kN);
#pragma unroll 4
    for (int k = 0; k < K; ++k) {
      const int32_t row = __ldg(&rows[k]);
      if (row < 0) continue;
      const auto result = weights == nullptr ? value : scaled(value, __ldg(&weights[t * K + k]));
      store_pack(out.row(row) + p * kN, result);
    }
  }
}

// The same lanes for a row of out: those that belong to no token become zero.
template <class T, int kN>
__global__ void __launch_bounds__(kTokenGridThreads)
    clear_pads_kernel(PlanRef plan, bool tail, Mat<T> out) {
  const int64_t r = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  const int64_t end = tail ? plan.rows : plan.expert_offset[plan.experts];
  if (r >= end || plan.row_src[r] >= 0) return;
  const Pack<T, kN> zero{};
  const int packs = static_cast<int>(out.cols / kN);
  for (int p = static_cast<int>(threadIdx.x); p < packs; p += static_cast<int>(blockDim.x)) {
    store_pack(out.row(r) + p * kN, zero);
  }
}

template <class T, int kN>
void launch(const Permute& a, cudaStream_t stream) {
  const auto* weights = static_cast<const float*>(a.weights.data);
  if (a.plan.tokens > 0) {
    const TokenGrid grid = token_grid(a.plan.tokens, a.x.cols / kN);
    permute_kernel<T, kN><<<grid.blocks, dim3(grid.lanes, grid.tokens), 0, stream>>>(
        a.plan, a.x.as<T>(), weights, a.out.as<T>());
    TROUPE_LAUNCH_CHECK(stream);
  }
  if ((a.plan.has_pads || a.clear_tail) && a.plan.rows > 0) {
    const TokenGrid grid = token_grid(a.plan.rows, a.x.cols / kN);
    clear_pads_kernel<T, kN><<<grid.blocks, dim3(grid.lanes, grid.tokens), 0, stream>>>(
        a.plan, a.clear_tail, a.out.as<T>());
    TROUPE_LAUNCH_CHECK(stream);
  }
}

}  // namespace

void permute_cuda(const Permute& a, cudaStream_t stream) {
  validate(a);
  dispatch_float(a.x.dtype, [&]<class T>() {
    const bool packed =
        a.x.cols % kPackOf<T> == 0 && rows_are_packed(a.x) && rows_are_packed(a.out.read());
    packed ? launch<T, kPackOf<T>>(a, stream) : launch<T, 1>(a, stream);
  });
}

}  // namespace troupe
