// The gradients of the weights.
#include "troupe/core/number/round.h"
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

struct Result {
  MutRef out;
  bool accumulate;
  int waves;
};

template <WeightStore kStore, bool kTransposed>
void launch_weight_grad(const WeightGemm& gemm, const Result& to, int64_t rows,
                        cudaStream_t stream) {
  using Spec = WeightGrad<kStore, kTransposed>;
  // Without rows there may be no memory; the map must still name some.
  const CUtensorMap packed =
      slabs_map(rows > 0 ? gemm.packed : to.out.data, 1, rows, gemm.columns_n, Spec::G::kK);
  typename Spec::Epilogue::Params store{{}, to.out.data, gemm.columns_m, gemm.columns_n};
  if (kStore == WeightStore::kBf16) {
    constexpr int kColumns = Spec::Epilogue::kColumns;
    store.map = rows_map(to.out.data, to.out.rows, to.out.cols, kTransposed ? 64 : kColumns,
                         kTransposed ? kColumns : 64);
  }
  const int64_t tiles = int64_t{gemm.experts} * gemm.m_pairs * gemm.n_tiles;
  launch_persistent<Spec::G::kBytes>(weight_gemm_kernel<Spec>, {tiles, to.waves, stream}, gemm,
                                     store, packed);
}

template <bool kTransposed>
void weight_grad(const PlanRef& plan, const MatRef& source, const MatRef& packed, const Result& to,
                 cudaStream_t stream) {
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
  if (to.out.dtype == Dtype::kBF16) {
    launch_weight_grad<WeightStore::kBf16, kTransposed>(gemm, to, plan.rows, stream);
  } else if (to.accumulate) {
    launch_weight_grad<WeightStore::kAddF32, kTransposed>(gemm, to, plan.rows, stream);
  } else {
    launch_weight_grad<WeightStore::kF32, kTransposed>(gemm, to, plan.rows, stream);
  }
}

}  // namespace

void moe_down_grad_sm90_cuda(const MoeDownGradSm90& a, cudaStream_t stream) {
  validate(a);
  weight_grad<false>(a.plan, a.grad_out, a.a, {a.grad_w2, a.accumulate, a.waves}, stream);
}

void moe_up_grad_sm90_cuda(const MoeUpGradSm90& a, cudaStream_t stream) {
  validate(a);
  weight_grad<true>(a.plan, a.x, a.grad_h, {a.grad_w1, a.accumulate, a.waves}, stream);
}

void weight_product_sm90_cuda(const WeightProductSm90& a, cudaStream_t stream) {
  validate(a);
  const PlanRef plan{.experts = a.experts,
                     .rows = a.gather_b ? a.a.rows : a.b.rows,
                     .expert_offset = a.expert_offset,
                     .row_src = a.row_src};
  const Result to{a.c, a.accumulate, a.waves};
  if (a.gather_b) {
    weight_grad<true>(plan, a.b, a.a, to, stream);
  } else {
    weight_grad<false>(plan, a.a, a.b, to, stream);
  }
}

}  // namespace troupe
