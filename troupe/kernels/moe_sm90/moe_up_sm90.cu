// `up`: gathered rows, with the activation.
#include "troupe/kernels/moe_sm90/launch.cuh"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/kernels/moe_sm90/rows_epilogue.cuh"
#include "troupe/kernels/moe_sm90/rows_gemm.cuh"

namespace troupe {
namespace {

using namespace sm90;

struct Up {
  static constexpr bool kGather = true;
  static constexpr WeightBoxes kBoxes = WeightBoxes::kGateAndUp;
  static constexpr int kProducerRegisters = 72;
  using Epilogue = Swiglu;
  using G = Geometry<kRowsRing.depth, kRowsRing.slots, Epilogue::kStagingBytes>;
};

}  // namespace

void moe_up_sm90_cuda(const MoeUpSm90& a, cudaStream_t stream) {
  validate(a);
  constexpr int kTileUnits = kTileN / 2;
  const int64_t units = a.a.cols, rows = a.plan.rows;
  const int64_t tiles = row_tile_bound(a.plan, units, kTileUnits);
  if (tiles == 0) return;
  const Swiglu::Params swiglu{rows_map(a.h.data, rows, 2 * units, kUnits),
                              rows_map(a.a.data, rows, units, kUnits),
                              static_cast<Bits16*>(a.h.data),
                              static_cast<Bits16*>(a.a.data),
                              static_cast<uint32_t>(units),
                              a.score,
                              a.plan.row_slot};
  launch_persistent<Up::G::kBytes>(
      rows_gemm_kernel<Up>, {tiles, a.waves, stream},
      rows_gemm(a.plan, &a.x, a.x.cols, units, kTileUnits), swiglu, CUtensorMap{},
      weight_map(a.w1.data, a.plan.experts, 2, units, a.x.cols, Up::G::kK));
}

}  // namespace troupe
