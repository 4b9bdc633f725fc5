// The products without a gather: `down` and `rows`.
#include "troupe/kernels/moe_sm90/launch.cuh"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/kernels/moe_sm90/moe_sm90_plan.h"
#include "troupe/kernels/moe_sm90/rows_epilogue.cuh"
#include "troupe/kernels/moe_sm90/rows_gemm.cuh"

namespace troupe {
namespace {

using namespace sm90;

template <WeightBoxes kWeightBoxes>
struct PlainRows {
  static constexpr bool kGather = false;
  static constexpr bool kFence = false;
  static constexpr WeightBoxes kBoxes = kWeightBoxes;
  static constexpr int kProducerRegisters = 40;
  using Epilogue = StoreRows;
  using G = Geometry<64, 4, Epilogue::kStagingBytes>;
};
constexpr int kSlotK = 64;

template <WeightBoxes kBoxes>
void multiply_rows(const PlanRef& plan, const MatRef& a, const CUtensorMap& weights,
                   const MutRef& out, cudaStream_t stream) {
  using Spec = PlainRows<kBoxes>;
  const int64_t tiles = row_tile_bound(plan, out.cols, kTileN);
  if (tiles == 0) return;
  launch_persistent<Spec::G::kBytes>(
      rows_gemm_kernel<Spec>, tiles, stream, rows_gemm(plan, nullptr, a.cols, out.cols, kTileN),
      StoreRows::Params{static_cast<Bits16*>(out.data), static_cast<uint32_t>(out.cols)},
      rows_map(a.data, plan.rows, a.cols, kSlotK), weights);
}

}  // namespace

void moe_down_sm90_cuda(const MoeDownSm90& a, cudaStream_t stream) {
  validate(a);
  multiply_rows<WeightBoxes::kRows>(
      a.plan, a.a, weight_map(a.w2.data, a.plan.experts, 1, a.y.cols, a.a.cols, kSlotK), a.y,
      stream);
}

void moe_rows_grad_sm90_cuda(const MoeRowsGradSm90& a, cudaStream_t stream) {
  validate(a);
  multiply_rows<WeightBoxes::kSlabs>(
      a.plan, a.grad_h,
      slabs_map(a.w1.data, a.plan.experts, a.grad_h.cols, a.grad_rows.cols, kSlotK), a.grad_rows,
      stream);
}

}  // namespace troupe
