#include "troupe/kernels/grouped_gemm/gemm_plan.h"

#include <algorithm>
#include <limits>

#include "troupe/core/number/round.h"

namespace troupe {
namespace {

constexpr int kStages = 4;
constexpr int kStageRowBytes = 64;         // of k, for each row of M and N
constexpr int64_t kReservedShared = 1024;  // what the driver takes of each block's shared memory

// A wide tile reads less for each product, and is worth it while it wastes under a tenth more
// columns.
int tile_cols(const GemmProblem& p) {
  if (p.dtype == Dtype::kF32 || !p.aligned) return 128;
  return ceil_div(p.cols, 256) * 256 * 10 <= ceil_div(p.cols, 128) * 128 * 11 ? 256 : 128;
}

int64_t count_tiles(const GemmProblem& p, const GemmPlan& plan) {
  const int64_t across = ceil_div(p.cols, plan.tile_n);
  if (!p.rows_are_routed) return p.experts * ceil_div(p.rows, plan.tile_m) * across;
  // Each segment may begin a tile of its own.
  return (p.rows / plan.tile_m + std::min(p.experts, p.rows)) * across;
}

}  // namespace

GemmPlan choose_plan(const GemmProblem& p, const DeviceLimits& limits) {
  TROUPE_CHECK(limits.capability >= 80, "grouped products need sm_80, the device is sm_",
               limits.capability);
  if (p.plain && limits.capability == 90) {
    return {.path = Path::kSm90, .tile_m = 256, .tile_n = 256, .depth = 64, .aligned = true};
  }
  GemmPlan plan{.tile_m = 128, .tile_n = tile_cols(p), .stages = kStages, .aligned = p.aligned};
  plan.depth = kStageRowBytes / static_cast<int>(size_bytes(p.dtype));
  // A warp has 64x64 of a tile where it has the registers, else 64x32; in fp32 a thread has 8x8.
  const bool large = plan.tile_n == 256 || (p.aligned && p.rows_are_routed);
  plan.threads = plan.tile_m * plan.tile_n / (large && p.dtype != Dtype::kF32 ? 128 : 64);
  plan.shared_bytes = int64_t{kStages} * kStageRowBytes * (plan.tile_m + plan.tile_n);
  TROUPE_CHECK(plan.shared_bytes <= limits.shared_per_block, to_text(plan), "does not fit into",
               limits.shared_per_block);

  plan.tiles = count_tiles(p, plan);
  // Registers hold 256 threads of a tensor-core tile, or of an fp32 one.
  const int64_t by_registers = 256 / plan.threads;
  const int64_t by_shared = limits.shared_per_processor / (plan.shared_bytes + kReservedShared);
  const int64_t resident = limits.processors * std::clamp<int64_t>(by_shared, 1, by_registers);
  plan.blocks = std::min(plan.tiles, resident);
  TROUPE_CHECK(plan.tiles + plan.blocks <= std::numeric_limits<int32_t>::max(), "tiles",
               plan.tiles);
  return plan;
}

std::string to_text(const GemmPlan& p) {
  return std::string(p.path == Path::kSm90 ? "sm90 " : "generic ") + std::to_string(p.tile_m) +
         'x' + std::to_string(p.tile_n) + 'x' + std::to_string(p.depth) + " stages " +
         std::to_string(p.stages) + " threads " + std::to_string(p.threads) +
         (p.aligned ? " aligned" : " unaligned") + " shared " + std::to_string(p.shared_bytes) +
         " tiles " + std::to_string(p.tiles) + " blocks " + std::to_string(p.blocks);
}

}  // namespace troupe
