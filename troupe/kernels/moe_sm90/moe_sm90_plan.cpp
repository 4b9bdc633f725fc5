#include "troupe/kernels/moe_sm90/moe_sm90_plan.h"

#include <algorithm>

#include "troupe/core/number/round.h"

namespace troupe {
namespace {

// TFLOP/s on one H200, 2026-11-21 (moe_sm90_speed time). In step or spread, dXt: sums of 28672: 666
// or 558; 2048: 654 or 694; 512: 548 or 591.
constexpr int64_t kInStepFrom = 4096;
constexpr int64_t kCyclesOf64 = 1100;  // of a 128 x 256 tile on one multiprocessor
constexpr int64_t kCyclesOfStore = 3000;
constexpr int64_t kMaxStagger = 100'000;
constexpr int64_t kFewTiles = 132;  // of a cluster: two waves of a Hopper GPU's 66
constexpr int64_t kClusterTile = 256;

int tile_cycles(int64_t length) {
  return static_cast<int>(std::min(length / 64 * kCyclesOf64 + kCyclesOfStore, kMaxStagger));
}

}  // namespace

MoeSm90Plan choose_rows_plan(int64_t length) {
  const bool in_step = length >= kInStepFrom;
  return {.in_step = in_step, .stagger_cycles = in_step ? 0 : tile_cycles(length)};
}

MoeSm90Plan choose_weight_plan(int64_t rows, int64_t experts, int64_t segment_rows) {
  const int64_t mean = rows / experts;
  const int64_t length = segment_rows > 0 ? std::min(mean, segment_rows) : mean;
  return {.in_step = false, .stagger_cycles = tile_cycles(length)};
}

int64_t choose_weight_segment(int64_t m, int64_t n) {
  const int64_t tiles = ceil_div(m, kClusterTile) * ceil_div(n, kClusterTile);
  return tiles < kFewTiles ? kSegmentRowsSm90 : 0;
}

// An expert with two segments or more has more rows than one, so fewer than twice its rows over a
// segment's.
SegmentSlots segment_slots(int64_t rows, int64_t experts, int64_t segment_rows) {
  const int64_t all = rows / segment_rows + experts;
  return {all, rows > segment_rows ? std::min(all, 2 * rows / segment_rows) : 0};
}

int64_t counter_bytes(int64_t held_tiles) {
  return round_up(held_tiles * 4 * static_cast<int64_t>(sizeof(int32_t)), int64_t{256});
}

int64_t segment_bytes(const SegmentSlots& slots, int64_t m, int64_t n) {
  const int64_t tiles = ceil_div(m, kClusterTile) * ceil_div(n, kClusterTile);
  const int64_t held = slots.held * tiles;
  return counter_bytes(held) + held * kClusterTile * kClusterTile * 4;
}

int64_t workspace_bytes(const SegmentsSm90& segments, int64_t rows, int64_t experts, int64_t m,
                        int64_t n) {
  if (segments.rows <= 0) return 0;
  const SegmentSlots slots = segment_slots(rows, experts, segments.rows);
  return slots.held > 0 ? segment_bytes(slots, m, n) : 0;
}

std::array<Sm90Kernel, 6> sm90_kernels(const Sm90Layer& layer, bool trial) {
  const int64_t D = layer.width, F = layer.hidden, rows = layer.rows / layer.experts;
  const auto weight = [&](std::string_view name, int64_t m, int64_t n) -> Sm90Kernel {
    const int64_t segment = trial ? choose_weight_segment(m, n) : 0;
    return {name, rows, kWeightGradRing, choose_weight_plan(layer.rows, layer.experts, segment),
            segment};
  };
  return {{{"up", D, kRowsRing, choose_rows_plan(D)},
           {"down", F, kRowsRing, choose_rows_plan(F)},
           {"hidden", D, kHiddenGradRing, choose_rows_plan(D)},
           {"rows", 2 * F, kRowsRing, choose_rows_plan(2 * F)},
           weight("grad W2", D, F),
           weight("grad W1", 2 * F, D)}};
}

std::string to_text(const Sm90Kernel& k) {
  return "sums of " + std::to_string(k.length) + "; tiles of " + std::to_string(kSm90TileRows) +
         " x " + std::to_string(kSm90TileColumns) + ", " + std::to_string(k.ring.slots) +
         " slots of " + std::to_string(k.ring.depth) + ", " +
         (k.plan.in_step ? "tiles kept in step"
                         : "starts spread over " + std::to_string(k.plan.stagger_cycles) +
                               " cycles from " + std::to_string(kStaggerWavesSm90) + " waves on") +
         (k.segment > 0 ? ", on trial: sums cut into segments of " + std::to_string(k.segment)
                        : "");
}

}  // namespace troupe
