// `hidden`: the gradient through the activation, and that of the routing weights.
#include "troupe/kernels/moe_sm90/hidden_grad.cuh"
#include "troupe/kernels/moe_sm90/launch.cuh"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/kernels/moe_sm90/rows_epilogue.cuh"
#include "troupe/kernels/moe_sm90/rows_gemm.cuh"

namespace troupe {
namespace {

using namespace sm90;

struct HiddenGrad {
  static constexpr bool kGather = true;
  static constexpr WeightBoxes kBoxes = WeightBoxes::kSlabs;
  static constexpr int kProducerRegisters = 56;
  using Epilogue = SwigluBackward;
  using G = Geometry<kHiddenGradRing.depth, kHiddenGradRing.slots, Epilogue::kStagingBytes>;
};

}  // namespace

void moe_hidden_grad_sm90_cuda(const MoeHiddenGradSm90& a, cudaStream_t stream) {
  validate(a);
  const int64_t units = a.a.cols;
  const int64_t tiles = row_tile_bound(a.plan, units, kTileN);
  if (tiles > 0) {
    launch_persistent<HiddenGrad::G::kBytes>(
        rows_gemm_kernel<HiddenGrad>, {tiles, a.waves, stream},
        rows_gemm(a.plan, &a.grad_out, a.grad_out.cols, units, kTileN), swiglu_backward(a),
        CUtensorMap{},
        slabs_map(a.w2.data, a.plan.experts, a.grad_out.cols, units, HiddenGrad::G::kK));
  }
  reduce_scores(a, stream);
}

}  // namespace troupe
