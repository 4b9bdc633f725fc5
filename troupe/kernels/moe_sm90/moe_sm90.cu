// The products whose rows are stored as they are: `down`, `rows`, and those for other experts.
#include "troupe/kernels/moe_sm90/launch.cuh"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/kernels/moe_sm90/moe_sm90_plan.h"
#include "troupe/kernels/moe_sm90/rows_epilogue.cuh"
#include "troupe/kernels/moe_sm90/rows_gemm.cuh"

namespace troupe {
namespace {

using namespace sm90;

template <bool kGathers, WeightBoxes kWeightBoxes>
struct PlainRows {
  static constexpr bool kGather = kGathers;
  static constexpr WeightBoxes kBoxes = kWeightBoxes;
  static constexpr int kProducerRegisters = kGathers ? 72 : 40;
  using Epilogue = StoreRows;
  using G = Geometry<kRowsRing.depth, kRowsRing.slots, Epilogue::kStagingBytes>;
};
constexpr int kSlotK = kRowsRing.depth;

template <bool kGather, WeightBoxes kBoxes>
void multiply_rows(const PlanRef& plan, const MatRef& a, const CUtensorMap& weights,
                   const MutRef& out, int waves, cudaStream_t stream) {
  using Spec = PlainRows<kGather, kBoxes>;
  const int64_t tiles = row_tile_bound(plan, out.cols, kTileN);
  if (tiles == 0) return;
  launch_persistent<Spec::G::kBytes>(
      rows_gemm_kernel<Spec>, {tiles, waves, stream},
      rows_gemm(plan, kGather ? &a : nullptr, a.cols, out.cols, kTileN),
      StoreRows::Params{static_cast<Bits16*>(out.data), static_cast<uint32_t>(out.cols)},
      kGather ? CUtensorMap{} : rows_map(a.data, plan.rows, a.cols, kSlotK), weights);
}

template <bool kGather>
void multiply_rows(const RowsProductSm90& x, cudaStream_t stream) {
  const PlanRef plan{.experts = x.experts,
                     .rows = x.c.rows,
                     .expert_offset = x.expert_offset,
                     .row_src = x.row_src};
  if (x.transpose_b) {
    multiply_rows<kGather, WeightBoxes::kRows>(
        plan, x.a, weight_map(x.b.data, x.experts, 1, x.c.cols, x.a.cols, kSlotK), x.c, x.waves,
        stream);
  } else {
    multiply_rows<kGather, WeightBoxes::kSlabs>(
        plan, x.a, slabs_map(x.b.data, x.experts, x.a.cols, x.c.cols, kSlotK), x.c, x.waves,
        stream);
  }
}

}  // namespace

void moe_down_sm90_cuda(const MoeDownSm90& a, cudaStream_t stream) {
  validate(a);
  multiply_rows<false>({a.plan.experts, a.plan.expert_offset, nullptr, a.a, a.w2, a.y,
                        /*transpose_b=*/true, a.waves},
                       stream);
}

void moe_rows_grad_sm90_cuda(const MoeRowsGradSm90& a, cudaStream_t stream) {
  validate(a);
  multiply_rows<false>({a.plan.experts, a.plan.expert_offset, nullptr, a.grad_h, a.w1, a.grad_rows,
                        /*transpose_b=*/false, a.waves},
                       stream);
}

void rows_product_sm90_cuda(const RowsProductSm90& a, cudaStream_t stream) {
  validate(a);
  a.row_src == nullptr ? multiply_rows<false>(a, stream) : multiply_rows<true>(a, stream);
}

}  // namespace troupe
