// The products without a gather: `down` and `rows`.
#include "troupe/kernels/moe_sm90/launch.cuh"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/kernels/moe_sm90/rows_epilogue.cuh"
#include "troupe/kernels/moe_sm90/rows_gemm.cuh"

namespace troupe {
namespace {

using namespace sm90;

template <WeightBoxes kWeightBoxes>
struct PlainRows {
  static constexpr bool kGather = false;
  static constexpr WeightBoxes kBoxes = kWeightBoxes;
  static constexpr int kProducerRegisters = 40;
  using Epilogue = StoreRows;
  using G = Geometry<32, 7, Epilogue::kStagingBytes>;
};

template <WeightBoxes kBoxes>
void multiply_rows(const PlanRef& plan, const MatRef& a, const CUtensorMap& weights,
                   const MutRef& out, cudaStream_t stream) {
  using Spec = PlainRows<kBoxes>;
  const int64_t tiles = row_tile_bound(plan, out.cols, kTileN);
  if (tiles == 0) return;
  const StoreRows::Params store{rows_map(out.data, plan.rows, out.cols, 64),
                                static_cast<Bits16*>(out.data), static_cast<uint32_t>(out.cols)};
  launch_persistent<Spec::G::kBytes>(rows_gemm_kernel<Spec>, tiles, stream,
                                     rows_gemm(plan, nullptr, a.cols, out.cols, kTileN), store,
                                     rows_map(a.data, plan.rows, a.cols, Spec::G::kK), weights);
}

}  // namespace

void moe_down_sm90_cuda(const MoeDownSm90& a, cudaStream_t stream) {
  validate(a);
  constexpr auto kBoxes = WeightBoxes::kRows;
  multiply_rows<kBoxes>(
      a.plan, a.a,
      weight_map(a.w2.data, a.plan.experts, 1, a.y.cols, a.a.cols, PlainRows<kBoxes>::G::kK), a.y,
      stream);
}

void moe_rows_grad_sm90_cuda(const MoeRowsGradSm90& a, cudaStream_t stream) {
  validate(a);
  constexpr auto kBoxes = WeightBoxes::kSlabs;
  multiply_rows<kBoxes>(a.plan, a.grad_h,
                        slabs_map(a.w1.data, a.plan.experts, a.grad_h.cols, a.grad_rows.cols,
                                  PlainRows<kBoxes>::G::kK),
                        a.grad_rows, stream);
}

}  // namespace troupe
