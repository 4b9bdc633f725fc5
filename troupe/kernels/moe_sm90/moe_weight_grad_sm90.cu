// The gradients of the weights.
#include "troupe/kernels/moe_sm90/launch.cuh"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/kernels/moe_sm90/weight_epilogue.cuh"
#include "troupe/kernels/moe_sm90/weight_gemm.cuh"

namespace troupe {
namespace {

using namespace sm90;

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
                        (columns_m + kClusterM - 1) / kClusterM,
                        (columns_n + kTileN - 1) / kTileN};
  const int64_t tiles = plan.experts * gemm.m_pairs * gemm.n_tiles;
  // Without rows there may be no memory; the map must still name some.
  const CUtensorMap map =
      slabs_map(plan.rows > 0 ? packed.data : out.data, 1, plan.rows, columns_n);
  const auto launch = [&]<WeightStore kStore>() {
    using Store = StoreWeight<kStore, kTransposed>;
    launch_persistent(weight_gemm_kernel<Store>, tiles, stream, gemm,
                      typename Store::Params{out.data, columns_m, columns_n}, map);
  };
  if (out.dtype == Dtype::kBF16) {
    launch.template operator()<WeightStore::kBf16>();
  } else if (accumulate) {
    launch.template operator()<WeightStore::kAddF32>();
  } else {
    launch.template operator()<WeightStore::kF32>();
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

}  // namespace troupe
