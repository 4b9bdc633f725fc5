// `up`: gathered rows, with the activation.
#include "troupe/kernels/fp8_tiles/fp8_tiles.h"
#include "troupe/kernels/moe_sm90/launch.cuh"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/kernels/moe_sm90/rows_fp8.cuh"
#include "troupe/kernels/moe_sm90/swiglu_fp8.cuh"

namespace troupe {
namespace {

using namespace sm90;

struct UpFp8 {
  static constexpr bool kGather = true;
  static constexpr bool kWholeTiles = false;
  static constexpr WeightBoxes kBoxes = WeightBoxes::kGateAndUp;
  using Epilogue = SwigluFp8;
  using G = Geometry<kSlotPairs, 3, Epilogue::kStagingBytes, scale_bytes(/*of_rows=*/false)>;
};

}  // namespace

void moe_up_fp8_sm90_cuda(const MoeUpFp8Sm90& a, cudaStream_t stream) {
  validate(a);
  const int64_t units = a.a.cols, rows = a.plan.rows, width = a.x.cols;
  const int64_t tiles = row_tile_bound(a.plan, units, kFp8Tile);
  if (tiles == 0) return;
  const auto across = static_cast<int>(width / kFp8Tile), down = static_cast<int>(units / kFp8Tile);
  const SwigluFp8::Params swiglu{rows_map(a.h.data, rows, 2 * units, kUnits, 16),
                                 rows_map(a.a.data, rows, units / 2, kSlotPairs, 16),
                                 static_cast<Bits16*>(a.h.data),
                                 a.a.data,
                                 a.a_scales,
                                 static_cast<uint32_t>(units),
                                 rows,
                                 a.score,
                                 a.plan.row_slot};
  // A column tile is 128 gates and their 128 ups: both halves exist, and ups are a matrix further.
  const WeightScales scales{a.w1_scales, int64_t{2} * down * across, across, down * across, 1,
                            2 * down};
  launch_persistent<UpFp8::G::kBytes>(
      rows_fp8_kernel<UpFp8>, {tiles, a.waves, stream},
      RowsFp8{rows_fp8_gemm(a.plan, a.x.data, width, units, kFp8Tile), scales, a.x_scales, 0},
      swiglu, CUtensorMap{},
      weight_map(a.w1.data, a.plan.experts, 2, units, width / 2, kSlotPairs));
}

}  // namespace troupe
