// `hidden` whose results leave in 8 bits.
#include "troupe/kernels/fp8_tiles/fp8_tiles.h"
#include "troupe/kernels/moe_sm90/hidden_grad.cuh"
#include "troupe/kernels/moe_sm90/launch.cuh"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/kernels/moe_sm90/rows_fp8.cuh"
#include "troupe/kernels/moe_sm90/swiglu_backward_tiles.cuh"

namespace troupe {
namespace {

using namespace sm90;

struct HiddenTilesFp8 {
  static constexpr bool kGather = true;
  static constexpr bool kWholeTiles = true;
  static constexpr WeightBoxes kBoxes = WeightBoxes::kRows;
  using Epilogue = SwigluBackwardTiles;
  using G = Geometry<kSlotPairs, 3, Epilogue::kStagingBytes, scale_bytes(/*of_rows=*/false)>;
  static_assert(G::kEpilogueBarriers == Epilogue::kPlaces);
};

// Bytes of columns in boxes of 128 of a column x 64 columns.
CUtensorMap columns_map(const Mat<uint8_t>& columns) {
  return rows_map(columns.data, columns.rows, columns.cols / 2, kSlotPairs, 64);
}

}  // namespace

void moe_hidden_tiles_fp8_sm90_cuda(const MoeHiddenTilesFp8Sm90& a, cudaStream_t stream) {
  validate(a);
  const int64_t units = a.h.cols / 2, rows = a.plan.rows, width = a.grad_out.cols;
  const int64_t tiles = row_tile_bound(a.plan, units, kTileN);
  if (tiles > 0) {
    const auto across = static_cast<int>(units / kFp8Tile);
    const WeightScales scales{a.w2_scales, width / kFp8Tile * across, 2, 1, across, across};
    const SwigluBackwardTiles::Params params{rows_map(a.h.data, rows, 2 * units, kUnits, kTileM),
                                             rows_map(a.grad_h.data, rows, units, kSlotPairs, 8),
                                             columns_map(a.grad_h_columns),
                                             columns_map(a.a_columns),
                                             a.grad_h.data,
                                             a.grad_h_scales,
                                             a.grad_h_column_scales,
                                             a.a_column_scales,
                                             static_cast<float*>(a.workspace),
                                             static_cast<uint32_t>(units),
                                             rows,
                                             static_cast<int>(ceil_div(units, kTileN)),
                                             a.score,
                                             a.plan.row_slot,
                                             a.plan.row_src,
                                             a.x_scales,
                                             a.grad_out_scales};
    launch_persistent<HiddenTilesFp8::G::kBytes>(
        rows_fp8_kernel<HiddenTilesFp8>, {tiles, a.waves, stream},
        RowsFp8{rows_fp8_gemm(a.plan, a.grad_out.data, width, units, kTileN), scales,
                a.grad_out_scales, 0},
        params, CUtensorMap{},
        weight_map(a.w2t.data, a.plan.experts, 1, units, width / 2, kSlotPairs));
  }
  reduce_scores(a, stream);
}

}  // namespace troupe
