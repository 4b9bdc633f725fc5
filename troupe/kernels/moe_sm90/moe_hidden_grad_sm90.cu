// `hidden`: the gradient through the activation, and that of the routing weights.
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
  static constexpr bool kFence = false;
  using G = Geometry<32, 6, Epilogue::kStagingBytes>;
};

// One thread a slot; the partial sums of its row in the order of the column tiles.
__global__ void __launch_bounds__(256)
    reduce_scores_kernel(const float* partial, int tiles, const int32_t* slot_row, int64_t slots,
                         float* grad_score) {
  const int64_t slot = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (slot >= slots) return;
  const int64_t row = slot_row[slot];
  float sum = 0;
  for (int i = 0; row >= 0 && i < tiles; ++i) sum += partial[row * tiles + i];
  grad_score[slot] = sum;
}

}  // namespace

void moe_hidden_grad_sm90_cuda(const MoeHiddenGradSm90& a, cudaStream_t stream) {
  validate(a);
  const int64_t units = a.a.cols, rows = a.plan.rows;
  const auto n_tiles = static_cast<int>(ceil_div(units, kTileN));
  const int64_t tiles = row_tile_bound(a.plan, units, kTileN);
  auto* const partial = static_cast<float*>(a.workspace);
  if (tiles > 0) {
    const SwigluBackward::Params backward{rows_map(a.h.data, rows, 2 * units, kUnits),
                                          rows_map(a.grad_h.data, rows, 2 * units, kUnits),
                                          rows_map(a.a.data, rows, units, kUnits),
                                          static_cast<Bits16*>(a.grad_h.data),
                                          static_cast<Bits16*>(a.a.data),
                                          partial,
                                          static_cast<uint32_t>(units),
                                          n_tiles,
                                          a.score,
                                          a.plan.row_slot};
    launch_persistent<HiddenGrad::G::kBytes>(
        rows_gemm_kernel<HiddenGrad>, {tiles, a.waves, stream},
        rows_gemm(a.plan, &a.grad_out, a.grad_out.cols, units, kTileN), backward, CUtensorMap{},
        slabs_map(a.w2.data, a.plan.experts, a.grad_out.cols, units, HiddenGrad::G::kK));
  }

  const int64_t slots = a.plan.tokens * a.plan.choices;
  if (slots == 0) return;
  reduce_scores_kernel<<<static_cast<unsigned>(ceil_div(slots, 256)), 256, 0, stream>>>(
      partial, n_tiles, a.plan.slot_row, slots, a.grad_score);
  TROUPE_LAUNCH_CHECK(stream);
}

}  // namespace troupe
