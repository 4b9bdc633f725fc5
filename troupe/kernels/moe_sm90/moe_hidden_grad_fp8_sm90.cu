// `hidden`: the gradient through the activation, and that of the routing weights.
#include "troupe/kernels/fp8_tiles/fp8_tiles.h"
#include "troupe/kernels/moe_sm90/hidden_grad.cuh"
#include "troupe/kernels/moe_sm90/launch.cuh"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/kernels/moe_sm90/rows_epilogue.cuh"
#include "troupe/kernels/moe_sm90/rows_fp8.cuh"

namespace troupe {
namespace {

using namespace sm90;

// As in bf16; but the rows' weights are read where they are used, not under the products: two
// registers, which the loop here does not have.
struct SwigluBackwardFp8 : SwigluBackward {
  __device__ void end(const Accumulator& acc) {
    score.load(p.score, p.row_slot, span, me);
    SwigluBackward::end(acc);
  }
};

struct HiddenGradFp8 {
  static constexpr bool kGather = true;
  static constexpr WeightBoxes kBoxes = WeightBoxes::kRows;
  using Epilogue = SwigluBackwardFp8;
  using G = Geometry<kSlotPairs, 3, Epilogue::kStagingBytes, scale_bytes(/*of_rows=*/false)>;
};

}  // namespace

void moe_hidden_grad_fp8_sm90_cuda(const MoeHiddenGradFp8Sm90& a, cudaStream_t stream) {
  validate(a);
  const int64_t units = a.a.cols, width = a.grad_out.cols;
  const int64_t tiles = row_tile_bound(a.plan, units, kTileN);
  if (tiles > 0) {
    const auto across = static_cast<int>(units / kFp8Tile);
    const WeightScales scales{a.w2_scales, width / kFp8Tile * across, 2, 1, across, across};
    launch_persistent<HiddenGradFp8::G::kBytes>(
        rows_fp8_kernel<HiddenGradFp8>, {tiles, a.waves, stream},
        RowsFp8{rows_fp8_gemm(a.plan, a.grad_out.data, width, units, kTileN), scales,
                a.grad_out_scales, 0},
        swiglu_backward(a), CUtensorMap{},
        weight_map(a.w2t.data, a.plan.experts, 1, units, width / 2, kSlotPairs));
  }
  reduce_scores(a, stream);
}

}  // namespace troupe
