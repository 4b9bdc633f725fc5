#include "troupe/kernels/moe_sm90/moe_sm90_plan.h"

#include <algorithm>

namespace troupe {
namespace {

// TFLOP/s on one H200, 2026-11-21 (moe_sm90_speed time). In step or spread, dXt: sums of 28672: 666
// or 558; 2048: 654 or 694; 512: 548 or 591.
constexpr int64_t kInStepFrom = 4096;
constexpr int64_t kCyclesOf64 = 1100;  // of a 128 x 256 tile on one multiprocessor
constexpr int64_t kCyclesOfStore = 3000;
constexpr int64_t kMaxStagger = 100'000;

int tile_cycles(int64_t length) {
  return static_cast<int>(std::min(length / 64 * kCyclesOf64 + kCyclesOfStore, kMaxStagger));
}

}  // namespace

MoeSm90Plan choose_rows_plan(int64_t length) {
  const bool in_step = length >= kInStepFrom;
  return {.in_step = in_step, .stagger_cycles = in_step ? 0 : tile_cycles(length)};
}

MoeSm90Plan choose_weight_plan(int64_t rows, int64_t experts) {
  return {.in_step = false, .stagger_cycles = tile_cycles(rows / experts)};
}

}  // namespace troupe
