// The products without a gather: `down` and `rows`.
#include "troupe/kernels/moe_sm90/launch.cuh"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/kernels/moe_sm90/moe_sm90_plan.h"
#include "troupe/kernels/moe_sm90/rows_epilogue.cuh"
#include "troupe/kernels/moe_sm90/rows_gemm.cuh"

namespace troupe {
namespace {

using namespace sm90;

template <WeightBoxes kWeightBoxes, bool kDeepRing>
struct PlainRows {
  static constexpr bool kGather = false;
  static constexpr bool kFence = false;
  static constexpr WeightBoxes kBoxes = kWeightBoxes;
  static constexpr int kProducerRegisters = 40;
  static constexpr int kColumns = kDeepRing ? 32 : 64;  // of a store
  using Epilogue = StoreRows<kColumns>;
  using G = Geometry<64, kDeepRing ? 4 : 3, Epilogue::kStagingBytes>;
};
constexpr int kSlotK = 64;

template <WeightBoxes kBoxes>
void multiply_rows(const PlanRef& plan, const MatRef& a, const CUtensorMap& weights,
                   const MutRef& out, cudaStream_t stream) {
  const int64_t tiles = row_tile_bound(plan, out.cols, kTileN);
  if (tiles == 0) return;
  const auto launch = [&]<bool kDeepRing>() {
    using Spec = PlainRows<kBoxes, kDeepRing>;
    const typename Spec::Epilogue::Params store{
        rows_map(out.data, plan.rows, out.cols, Spec::kColumns), static_cast<Bits16*>(out.data),
        static_cast<uint32_t>(out.cols)};
    launch_persistent<Spec::G::kBytes>(rows_gemm_kernel<Spec>, tiles, stream,
                                       rows_gemm(plan, nullptr, a.cols, out.cols, kTileN), store,
                                       rows_map(a.data, plan.rows, a.cols, kSlotK), weights);
  };
  if (choose_rows_plan(a.cols).deep_ring) {
    launch.template operator()<true>();
  } else {
    launch.template operator()<false>();
  }
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
