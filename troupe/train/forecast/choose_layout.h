// What a recipe leaves open in `parallel` and in train.micro_batch, settled for the ranks that are
// there, and why.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/plan/machine.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {

// What layout_faults() and resolved() have to know of a recipe on so many ranks.
LayoutNeeds needs_of(const Recipe& recipe, int64_t world, int64_t per_host);
// `config` with nothing left open; one Error of all that does not fit.
ParallelConfig settled(const ParallelConfig& config, const LayoutNeeds& needs);

// What a run's layouts are costed with: run.machine's file, or round figures for its device, as
// also for links that the file does not have.
Machine machine_of(const Recipe& recipe, bool on_gpu);

struct RanksAtHand {
  int64_t world = 1;
  int64_t per_host = 1;
  double memory = 0;  // of a rank's device; 0: not known
  bool on_gpu = false;
};

struct LayoutChoice {
  ParallelConfig parallel = {};  // resolved, unless it cannot be: settled() says why
  int64_t micro_batch = 1;       // sequences
  std::string micro_why = {};    // "given", "chosen: ..."
  std::string why = {};          // a line for the log
  double seconds = 0;            // of a step, as forecast
  static void visit(auto& c, auto&& f) {
    f("parallel", c.parallel);
    f("micro_batch", c.micro_batch);
    f("micro_why", c.micro_why);
    f("why", c.why);
    f("seconds", c.seconds);
  }
};

// Of the layouts that the recipe leaves open (layouts_that_fit: the list that would run is costed
// with the machine's rates) and that need at most kMostMemory of the memory, the fastest; but of
// those within kAlike of it the one with the fewest moving parts: the optimizer's state shared
// (ZeRO-1), no state, all state (FSDP); over all ranks, over those of a host; experts over fewer
// ranks; the larger microbatch. Where none fits, what needs least. What is given stays as it is,
// also where it does not fit: layout_faults tells that. Rows to experts over several hosts cross
// once to each of them (two_level). The same for all that call it with the same.
inline constexpr double kAlike = 1.02, kMostMemory = 0.9;
LayoutChoice choose_layout(const Recipe& recipe, const RanksAtHand& ranks, const Machine& machine);

// The numbers that train.micro_batch may be on so many ranks, the largest first: what is given; or
// those of 8,192 tokens at most (16,384 on a GPU) that divide the batch, of them those that give
// all ranks equally many microbatches, or else each at least one.
std::vector<int64_t> open_micro_batches(const Recipe& recipe, int64_t world, bool on_gpu);

// train.micro_batch where `parallel` is settled: of open_micro_batches() the largest that needs at
// most 90 % of the memory, or else the smallest.
struct MicroBatchChoice {
  int64_t sequences = 1;
  std::string why;  // "given", "chosen: ..."
};
MicroBatchChoice choose_micro_batch(const Recipe& recipe, const RanksAtHand& ranks);

}  // namespace troupe
