// What a recipe leaves open in `parallel`, settled for the ranks that are there, and why.
#pragma once

#include <cstdint>
#include <string>

#include "troupe/train/recipe.h"

namespace troupe {

// What layout_faults() and resolved() have to know of a recipe on so many ranks.
LayoutNeeds needs_of(const Recipe& recipe, int64_t world, int64_t per_host);
// `config` with nothing left open; one Error of all that does not fit.
ParallelConfig settled(const ParallelConfig& config, const LayoutNeeds& needs);

struct RanksAtHand {
  int64_t world = 1;
  int64_t per_host = 1;
  double memory = 0;  // of a rank's device; 0: not known
  bool on_gpu = false;
};

struct LayoutChoice {
  ParallelConfig parallel;
  std::string why;  // a line for the log
};

// Experts lie over as many ranks of one host as divide their number (rows cross no slower link)
// where the rows that a rank then sends and waits for, twice counted, are fewer bytes than what its
// experts' gradients and values no longer take beside the backward; else each rank has all of them.
// Of the state the optimizer's alone is shared (ZeRO-1), the fewest bytes sent. Where that needs
// over 90 % of the memory: the other of the two for the experts, then sharing all state (FSDP) with
// either; where nothing fits, what needs least. Where the recipe has experts over several hosts,
// rows cross once to each of them (two_level). What is given stays as it is, also where it does not
// fit: layout_faults tells that.
LayoutChoice choose_layout(const Recipe& recipe, const RanksAtHand& ranks);

// train.micro_batch where the recipe has none; its `parallel` is settled. As many sequences as have
// 8,192 tokens at most (16,384 on a GPU) and need at most 90 % of the memory: of the numbers that
// divide the batch those that give all ranks equally many microbatches, or else each at least one.
struct MicroBatchChoice {
  int64_t sequences = 1;
  std::string why;  // "given", "chosen: ..."
};
MicroBatchChoice choose_micro_batch(const Recipe& recipe, const RanksAtHand& ranks);

}  // namespace troupe
