// The products whose rows are stored as they are: `down` and `rows`.
#include "troupe/kernels/fp8_tiles/fp8_tiles.h"
#include "troupe/kernels/moe_sm90/launch.cuh"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/kernels/moe_sm90/rows_epilogue.cuh"
#include "troupe/kernels/moe_sm90/rows_fp8.cuh"

namespace troupe {
namespace {

using namespace sm90;

struct PackedRowsFp8 {
  static constexpr bool kGather = false;
  static constexpr bool kWholeTiles = false;
  static constexpr WeightBoxes kBoxes = WeightBoxes::kRows;
  using Epilogue = StoreRowsLater;
  using G = Geometry<kSlotPairs, 3, Epilogue::kStagingBytes, scale_bytes(/*of_rows=*/true)>;
};

struct PackedRows {
  const PlanRef& plan;
  Mat<const uint8_t> a;   // [R, K]
  const float* scales;    // [K / 128, scales_ld]
  int64_t scales_ld;      // 0: one for a whole row
  const uint8_t* weight;  // [E N, K]
  WeightScales weight_scales;
  MutRef out;  // [R, N]
  int waves;
};

void multiply_rows(const PackedRows& x, cudaStream_t stream) {
  const int64_t width = x.a.cols, columns = x.out.cols;
  const int64_t tiles = row_tile_bound(x.plan, columns, kTileN);
  if (tiles == 0) return;
  launch_persistent<PackedRowsFp8::G::kBytes>(
      rows_fp8_kernel<PackedRowsFp8>, {tiles, x.waves, stream},
      RowsFp8{rows_fp8_gemm(x.plan, nullptr, width, columns, kTileN), x.weight_scales, x.scales,
              x.scales_ld},
      StoreRowsLater::Params{rows_map(x.out.data, x.out.rows, columns, 64, 16),
                             static_cast<Bits16*>(x.out.data), static_cast<uint32_t>(columns)},
      rows_map(x.a.data, x.plan.rows, width / 2, kSlotPairs),
      weight_map(x.weight, x.plan.experts, 1, columns, width / 2, kSlotPairs));
}

}  // namespace

void moe_down_fp8_sm90_cuda(const MoeDownFp8Sm90& a, cudaStream_t stream) {
  validate(a);
  const auto across = static_cast<int>(a.a.cols / kFp8Tile);
  const auto down = static_cast<int>(a.y.cols / kFp8Tile);
  multiply_rows({a.plan,
                 a.a,
                 a.a_scales,
                 a.whole_rows ? 0 : a.plan.rows,
                 a.w2.data,
                 {a.w2_scales, int64_t{down} * across, 2 * across, across, 1, down},
                 a.y,
                 a.waves},
                stream);
}

void moe_rows_grad_fp8_sm90_cuda(const MoeRowsGradFp8Sm90& a, cudaStream_t stream) {
  validate(a);
  const auto across = static_cast<int>(a.grad_rows.cols / kFp8Tile);
  const int64_t down = a.grad_h.cols / kFp8Tile;
  multiply_rows({a.plan,
                 a.grad_h,
                 a.grad_h_scales,
                 a.plan.rows,
                 a.w1t.data,
                 {a.w1_scales, down * across, 2, 1, across, across},
                 a.grad_rows,
                 a.waves},
                stream);
}

}  // namespace troupe
