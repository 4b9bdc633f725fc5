// The gradients of the weights.
#include "troupe/core/round.h"
#include "troupe/kernels/moe_sm90/launch.cuh"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/kernels/moe_sm90/moe_sm90_plan.h"
#include "troupe/kernels/moe_sm90/weight_epilogue.cuh"
#include "troupe/kernels/moe_sm90/weight_gemm.cuh"

namespace troupe {
namespace {

using namespace sm90;

template <WeightStore kStore, bool kTransposed>
struct WeightGrad {
  using Epilogue = StoreWeight<kStore, kTransposed>;
  static constexpr bool kFence = false;
  using G = Geometry<64, 4, Epilogue::kStagingBytes>;
};

template <WeightStore kStore, bool kTransposed>
void launch_weight_grad(const WeightGemm& gemm, const MutRef& out, int64_t rows,
                        cudaStream_t stream) {
  using Spec = WeightGrad<kStore, kTransposed>;
  // Without rows there may be no memory; the map must still name some.
  const CUtensorMap packed =
      slabs_map(rows > 0 ? gemm.packed : out.data, 1, rows, gemm.columns_n, Spec::G::kK);
  typename Spec::Epilogue::Params store{{}, out.data, gemm.columns_m, gemm.columns_n};
  if (kStore == WeightStore::kBf16) {
    constexpr int kColumns = Spec::Epilogue::kColumns;
    store.map = rows_map(out.data, out.rows, out.cols, kTransposed ? 64 : kColumns,
                         kTransposed ? kColumns : 64);
  }
  launch_persistent<Spec::G::kBytes>(weight_gemm_kernel<Spec>,
                                     int64_t{gemm.experts} * gemm.m_pairs * gemm.n_tiles, stream,
                                     gemm, store, packed);
}

template <bool kTransposed>
void weight_grad(const PlanRef& plan, const MatRef& source, const MatRef& packed, const MutRef& out,
                 bool accumulate, cudaStream_t stream) {
  const auto columns_m = static_cast<int>(source.cols), columns_n = static_cast<int>(packed.cols);
  const WeightGemm gemm{static_cast<const uint8_t*>(source.data),
                        static_cast<const uint8_t*>(packed.data),
                        plan.row_src,
                        plan.expert_offset,
                        static_cast<int>(plan.experts),
                        columns_m,
                        columns_n,
                        static_cast<int>(ceil_div(columns_m, kClusterM)),
                        static_cast<int>(ceil_div(columns_n, kTileN)),
                        choose_weight_plan(plan.rows, plan.experts).stagger_cycles};
  if (out.dtype == Dtype::kBF16) {
    launch_weight_grad<WeightStore::kBf16, kTransposed>(gemm, out, plan.rows, stream);
  } else if (accumulate) {
    launch_weight_grad<WeightStore::kAddF32, kTransposed>(gemm, out, plan.rows, stream);
  } else {
    launch_weight_grad<WeightStore::kF32, kTransposed>(gemm, out, plan.rows, stream);
  }
}

}  // namespace

void moe_down_grad_sm90_cuda(const MoeDownGradSm90& a, cudaStream_t stream) {
  validate(a);
  weight_grad<false>(a.plan, a.grad_out, a.a, a.grad_w2, a.accumulate, stream);
}

void moe_up_grad_sm90_cuda(const MoeUpGradSm90& a, cudaStream_t stream) {
  validate(a);
  weight_grad<true>(a.plan, a.x, a.grad_h, a.grad_w1, a.accumulate, stream);
}

void weight_product_sm90_cuda(const WeightProductSm90& a, cudaStream_t stream) {
  validate(a);
  const PlanRef plan{.experts = a.experts,
                     .rows = a.gather_b ? a.a.rows : a.b.rows,
                     .expert_offset = a.expert_offset,
                     .row_src = a.row_src};
  if (a.gather_b) {
    weight_grad<true>(plan, a.b, a.a, a.c, a.accumulate, stream);
  } else {
    weight_grad<false>(plan, a.a, a.b, a.c, a.accumulate, stream);
  }
}

}  // namespace troupe
