// Searches the layouts that a recipe leaves open on these ranks: `parallel.tensor`, `context`,
// `pipeline` with its stages, `virtual` and `schedule`, `expert`, `expert_tensor`, `shard`,
// `shard_ranks` and `train.micro_batch`. What is given stays. In this order:
//   1. Layouts with each open axis at 1: all by their lists, as a run would execute them.
//   2. With other axes where asked for (OpenAxes): tensor ranks divide a host; context ranks for
//      rows from kLongRow tokens on; slices of experts where nothing else fits. Each is costed
//      without lists (QuickForecast), with one stage a rank.
//   3. The kTimed fastest of those that may fit, or up to kMostTimed until kVaried of them do, and
//      the kSmall with the least memory, by their lists; then, of the kVaried fastest with a
//      pipeline that fit, or nearly, all orders and two and more stages per rank.
// Deterministic in its arguments. 3,072 ranks and 40 layers take seconds
// (docs/reference/SCALING.md).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "troupe/train/forecast/choose_layout.h"
#include "troupe/train/forecast/layout_forecast.h"

namespace troupe {

enum class OpenAxes : uint8_t {
  kLeast,   // tensor, context and pipeline 1 where the recipe leaves them open
  kMayFit,  // others too where nothing fits with these, or GPUs of several hosts have the ranks
  kAll,     // all
};

// Up to kCostedMicrobatches microbatches per rank are simulated, in a pipeline as many as fill and
// empty it; each further one takes as long as the last.
inline constexpr int64_t kCostedMicrobatches = 6;
inline constexpr size_t kTimed = 64, kMostTimed = 128, kSmall = 16, kVaried = 8;
inline constexpr double kQuickMemory = 1.15;  // so far may a QuickForecast be above what fits
inline constexpr int64_t kLongRow = 16384;

struct LayoutSearch {
  std::vector<LayoutForecast> fit = {};  // fastest first, then by memory; without lists and slots
  std::optional<LayoutForecast> least = {};  // of all simulated, the one with the least memory
  int64_t quick = 0, simulated = 0;          // layouts costed without and with lists
};

// `ranks.memory` is all that a layout may need; 0: any fits.
LayoutSearch find_layouts(const Recipe& recipe, const RanksAtHand& ranks, const Machine& machine,
                          OpenAxes axes);

}  // namespace troupe
