#include "troupe/kernels/grouped_gemm/gemm_plan.h"

#include <algorithm>
#include <limits>

#include "troupe/core/number/round.h"

namespace troupe {
namespace {

constexpr int kTileM = 128;
constexpr int kStageRowBytes = 64;         // of k, for each row of M and N
constexpr int64_t kReservedShared = 1024;  // what the driver takes of each block's shared memory

// grouped::dispatch_tile (launch.cuh) has the same lists.
constexpr GemmTile kRowTiles[] = {{256, 4}, {128, 4}, {128, 3}, {64, 4}};
constexpr GemmTile kWeightTiles[] = {{256, 4}, {128, 4}, {64, 4}};
constexpr GemmTile kOnlyTile[] = {{128, 4}};

int64_t shared_bytes(GemmTile tile) {
  return int64_t{tile.stages} * kStageRowBytes * (kTileM + tile.n);
}

// A warp has 64x64 of a tile where it has the registers, else 64x32; in fp32 a thread has 8x8.
int threads_of(const GemmProblem& p, int n) {
  const bool large = n == 256 || (n == 128 && p.aligned && p.rows_are_routed);
  return kTileM * n / (large && p.dtype != Dtype::kF32 ? 128 : 64);
}

int64_t count_tiles(const GemmProblem& p, int n) {
  const int64_t across = ceil_div(p.cols, n);
  if (!p.rows_are_routed) return p.experts * ceil_div(p.rows, kTileM) * across;
  // Each segment may begin a tile of its own.
  return (p.rows / kTileM + std::min(p.experts, p.rows)) * across;
}

bool is_built(const GemmProblem& p, GemmTile tile) {
  return std::ranges::find(built_tiles(p), tile) != built_tiles(p).end();
}

// Registers hold 256 threads of a large tile, tensor-core or fp32.
TileSpeed with_registers(const GemmProblem& p, GemmTile tile) {
  return {.n = tile.n, .stages = tile.stages, .blocks = 256 / threads_of(p, tile.n), .rate = 100};
}

TileSpeed tile_of(const GemmProblem& p, const DeviceLimits& limits) {
  if (p.tile == GemmTile{}) return choose_tile(gemm_entry(limits.capability), p, limits);
  TROUPE_CHECK(is_built(p, p.tile), "no grouped product built with tiles of", p.tile.n,
               "columns and", p.tile.stages, "stages for", name(p.dtype),
               p.aligned ? "" : "with unaligned rows");
  return with_registers(p, p.tile);
}

}  // namespace

std::span<const GemmTile> built_tiles(const GemmProblem& p) {
  if (p.dtype == Dtype::kF32 || !p.aligned) return kOnlyTile;
  if (p.rows_are_routed) return kRowTiles;
  return kWeightTiles;
}

TileSpeed choose_tile(const GemmEntry& entry, const GemmProblem& p, const DeviceLimits& limits) {
  const auto cost = [&](const TileSpeed& t) {
    return (count_tiles(p, t.n) + limits.processors) * t.n;
  };
  TileSpeed best;
  for (const TileSpeed& t : p.rows_are_routed ? entry.rows : entry.weight) {
    if (t.n == 0 || !is_built(p, t.tile()) || shared_bytes(t.tile()) > limits.shared_per_block) {
      continue;
    }
    if (best.n == 0 || cost(t) * best.rate < cost(best) * t.rate) best = t;
  }
  if (best.n == 0) return with_registers(p, kOnlyTile[0]);
  best.blocks = std::min(best.blocks, with_registers(p, best.tile()).blocks);
  return best;
}

GemmPlan choose_plan(const GemmProblem& p, const DeviceLimits& limits) {
  TROUPE_CHECK(limits.capability >= 80, "grouped products need sm_80, the device is sm_",
               limits.capability);
  if (p.plain && limits.sm90_code && p.tile == GemmTile{}) {
    return {.path = Path::kSm90, .tile_m = 256, .tile_n = 256, .depth = 64, .aligned = true};
  }
  const TileSpeed tile = tile_of(p, limits);
  GemmPlan plan{.tile_m = kTileM, .tile_n = tile.n, .stages = tile.stages, .aligned = p.aligned};
  plan.depth = kStageRowBytes / static_cast<int>(size_bytes(p.dtype));
  plan.threads = threads_of(p, tile.n);
  plan.shared_bytes = shared_bytes(tile.tile());
  TROUPE_CHECK(plan.shared_bytes <= limits.shared_per_block, to_text(plan), "does not fit into",
               limits.shared_per_block);

  plan.tiles = count_tiles(p, tile.n);
  const int64_t by_shared = limits.shared_per_processor / (plan.shared_bytes + kReservedShared);
  const int64_t resident = limits.processors * std::clamp<int64_t>(by_shared, 1, tile.blocks);
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
