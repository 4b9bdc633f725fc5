// The gradients of the weights.
#include "troupe/core/number/round.h"
#include "troupe/kernels/fp8_tiles/fp8_tiles.h"
#include "troupe/kernels/moe_sm90/launch.cuh"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/kernels/moe_sm90/moe_sm90_plan.h"
#include "troupe/kernels/moe_sm90/weight_fp8.cuh"

namespace troupe {
namespace {

using namespace sm90;

template <bool kTransposed>
struct WeightGradFp8 {
  using Epilogue = StoreWeightFp8<kTransposed>;
  using G = Geometry<kSlotPairs, 3, Epilogue::kStagingBytes, scale_bytes(/*of_rows=*/false)>;
};

template <bool kTransposed>
void weight_grad(const MoeWeightGradFp8Sm90& a, cudaStream_t stream) {
  using Spec = WeightGradFp8<kTransposed>;
  const auto columns_m = static_cast<int>(a.rows.cols),
             columns_n = static_cast<int>(a.columns.rows);
  const PlanRef& plan = a.plan;
  const WeightFp8 gemm{a.rows.data,
                       plan.row_src,
                       plan.expert_offset,
                       a.column_scales,
                       static_cast<int>(plan.experts),
                       columns_m,
                       columns_n,
                       static_cast<int>(ceil_div(columns_m, kClusterM)),
                       static_cast<int>(ceil_div(columns_n, kTileN)),
                       choose_weight_plan(plan.rows / 2, plan.experts).stagger_cycles};
  const typename Spec::Epilogue::Params store{rows_map(a.grad.data, a.grad.rows, a.grad.cols, 64),
                                              columns_m, columns_n};
  // Without rows there may be no memory; the map must still name some.
  const void* const columns = plan.rows > 0 ? a.columns.data : a.grad.data;
  const int64_t tiles = int64_t{gemm.experts} * gemm.m_pairs * gemm.n_tiles;
  launch_persistent<Spec::G::kBytes>(
      weight_fp8_kernel<Spec>, {tiles, a.waves, stream}, gemm, store,
      weight_map(columns, 1, 1, columns_n, a.columns.cols / 2, kSlotPairs));
}

}  // namespace

void moe_weight_grad_fp8_sm90_cuda(const MoeWeightGradFp8Sm90& a, cudaStream_t stream) {
  validate(a);
  a.transposed ? weight_grad<true>(a, stream) : weight_grad<false>(a, stream);
}

}  // namespace troupe
