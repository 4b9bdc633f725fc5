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
  static constexpr int kLead = 1;
  static constexpr int kProducerRegisters = 40;
  using Epilogue = StoreRows;
};

template <WeightBoxes kBoxes>
void multiply_rows(const PlanRef& plan, const MatRef& a, const CUtensorMap& weights,
                   const MutRef& out, cudaStream_t stream) {
  const auto n_tiles = static_cast<int>((out.cols + kTileN - 1) / kTileN);
  const RowsGemm gemm{nullptr,
                      0,
                      nullptr,
                      plan.expert_offset,
                      static_cast<int>(plan.experts),
                      static_cast<int>(a.cols / kTileK),
                      n_tiles};
  const StoreRows::Params store{static_cast<Bits16*>(out.data), static_cast<uint32_t>(out.cols)};
  const int64_t tiles = plan.rows == 0 ? 0 : (plan.rows / kClusterM + plan.experts) * n_tiles;
  launch_persistent(rows_gemm_kernel<PlainRows<kBoxes>>, tiles, stream, gemm, store,
                    rows_map(a.data, plan.rows, a.cols), weights);
}

}  // namespace

void moe_down_sm90_cuda(const MoeDownSm90& a, cudaStream_t stream) {
  validate(a);
  multiply_rows<WeightBoxes::kRows>(
      a.plan, a.a, weight_map(a.w2.data, a.plan.experts, 1, a.y.cols, a.a.cols), a.y, stream);
}

void moe_rows_grad_sm90_cuda(const MoeRowsGradSm90& a, cudaStream_t stream) {
  validate(a);
  multiply_rows<WeightBoxes::kSlabs>(
      a.plan, a.grad_h, slabs_map(a.w1.data, a.plan.experts, a.grad_h.cols, a.grad_rows.cols),
      a.grad_rows, stream);
}

}  // namespace troupe
