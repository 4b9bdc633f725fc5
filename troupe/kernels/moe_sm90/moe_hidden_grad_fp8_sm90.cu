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

// As in bf16; but a warp waits for nobody. It has its own barriers and three places of 32 units: H,
// dH where H was, and A behind it. Each place's bytes leave while the other two are worked on.
struct SwigluBackwardFp8 : SwigluBackward {
  static constexpr int kPlaces = 3;
  static constexpr uint32_t kBox = kWarpBytes<4>;  // 16 rows x 32 bf16
  static constexpr uint32_t kStagingBytes = 4 * kPlaces * 3 * kBox;
  static constexpr int kSubTiles = kTileN / kUnits;

  __device__ int row() const { return span.row + 16 * me.warp; }
  __device__ int valid() const { return span.valid - 16 * me.warp; }
  __device__ uint32_t place(int c) const {
    return me.staging + (me.warp * kPlaces + c % kPlaces) * 3 * kBox;
  }
  __device__ uint32_t barrier(int c) const {
    return me.barriers + (me.warp * kPlaces + c % kPlaces) * 8;
  }

  // Lane 0's: H of sub-tile c into its place.
  __device__ void load(int c) const {
    const int column = 2 * (unit() + kUnits * c);
    barrier_expect(barrier(c), 2 * kBox);
    copy_box_2d(place(c), &p.h_map, column, row(), barrier(c));
    copy_box_2d(place(c) + kBox, &p.h_map, column + 32, row(), barrier(c));
  }

  __device__ void fetch() {
    if (valid() <= 0) return;
    score.load(p.score, p.row_slot, span, me);
    if (me.lane != 0) return;
    store_wait_read<0>();
    for (int c = 0; c < kSubTiles && exists(c); ++c) {
      if (c < kPlaces) {
        load(c);
      } else {
        prefetch_box_2d(&p.h_map, 2 * (unit() + kUnits * c), row());
        prefetch_box_2d(&p.h_map, 2 * (unit() + kUnits * c) + 32, row());
      }
    }
  }

  __device__ void end(const Accumulator& acc) {
    if (valid() <= 0) return;
    const WarpOutput<> grad_h{&p.grad_h_map, p.grad_h, 2 * p.units}, a{&p.a_map, p.a, p.units};
    float sum_low = 0, sum_high = 0;
#pragma unroll
    for (int c = 0; c < kSubTiles; ++c) {
      if (!exists(c)) break;
      barrier_wait(barrier(c), phases >> c % kPlaces & 1);
      phases ^= 1u << c % kPlaces;
      const int lane = opaque(me.lane), at = unit() + kUnits * c;
      const uint32_t to = place(c);
      Out out;
      sub_tile<kBox>(to + staged<4>(lane / 4, lane % 4), acc + 16 * c, out);
      sum_low += out.dot_low, sum_high += out.dot_high;
      __syncwarp();  // All have read H.
      stage(to, lane, out.d_gate);
      stage(to + kBox, lane, out.d_up);
      stage(to + 2 * kBox, lane, out.a);
      async_proxy_fence();
      __syncwarp();
      grad_h.store<4>(me, to, row(), at, valid());
      grad_h.store<4>(me, to + kBox, row(), at + static_cast<int>(p.units), valid());
      a.store<4>(me, to + 2 * kBox, row(), at, valid());
      if (me.lane == 0) {
        store_commit();
        if (c > 0 && c + 2 < kSubTiles && exists(c + 2)) {
          store_wait_read<1>();  // What sub-tile c - 1 made has left the place that is filled now.
          load(c + 2);
        }
      }
    }
    __syncwarp();
    store_sums(sum_low, sum_high);
  }
};

struct HiddenGradFp8 {
  static constexpr bool kGather = true;
  static constexpr bool kWholeTiles = false;
  static constexpr WeightBoxes kBoxes = WeightBoxes::kRows;
  using Epilogue = SwigluBackwardFp8;
  using G = Geometry<kSlotPairs, 3, Epilogue::kStagingBytes, scale_bytes(/*of_rows=*/false),
                     4 * SwigluBackwardFp8::kPlaces>;
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
        swiglu_backward(a, /*box_rows=*/16), CUtensorMap{},
        weight_map(a.w2t.data, a.plan.experts, 1, units, width / 2, kSlotPairs));
  }
  reduce_scores(a, stream);
}

}  // namespace troupe
