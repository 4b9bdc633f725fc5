#include "troupe/core/device/cuda_check.h"
#include "troupe/core/number/round.h"
#include "troupe/kernels/device/pack.cuh"
#include "troupe/kernels/device/reduce.cuh"
#include "troupe/kernels/slot_dot/slot_dot.h"

namespace troupe {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarpLanes;

// One warp a slot; the slots of a token are neighbors, so its row comes from L1 but once. Bound by
// reading the rows.
template <class T, int kN>
__global__ void __launch_bounds__(kThreads)
    slot_dot_kernel(PlanRef plan, Mat<const T> rows, Mat<const T> x, float* out) {
  const int64_t slot = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarpLanes;
  if (slot >= plan.tokens * plan.choices) return;  // Whole warps leave.
  const int lane = static_cast<int>(threadIdx.x % kWarpLanes);
  const int32_t row = plan.slot_row[slot];
  float sum = 0;
  if (row >= 0) {
    const T* a = rows.row(row);
    const T* b = x.row(slot / plan.choices);
    const int packs = static_cast<int>(x.cols / kN);
#pragma unroll 4
    for (int p = lane; p < packs; p += kWarpLanes) {
      const Pack<T, kN> u = load_pack<kN>(a + p * kN), v = load_pack<kN>(b + p * kN);
#pragma unroll
      for (int i = 0; i < kN; ++i) sum += static_cast<float>(u.v[i]) * static_cast<float>(v.v[i]);
    }
  }
  sum = warp_sum(sum);
  if (lane == 0) out[slot] = sum;
}

template <class T, int kN>
void launch(const SlotDot& a, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(a.plan.tokens * a.plan.choices, kWarps));
  slot_dot_kernel<T, kN><<<blocks, kThreads, 0, stream>>>(a.plan, a.rows.as<T>(), a.x.as<T>(),
                                                          a.out.as<float>().data);
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace

void slot_dot_cuda(const SlotDot& a, cudaStream_t stream) {
  validate(a);
  if (a.plan.tokens == 0) return;
  dispatch_float(a.x.dtype, [&]<class T>() {
    const bool packed =
        a.x.cols % kPackOf<T> == 0 && rows_are_packed(a.x) && rows_are_packed(a.rows);
    packed ? launch<T, kPackOf<T>>(a, stream) : launch<T, 1>(a, stream);
  });
}

}  // namespace troupe
