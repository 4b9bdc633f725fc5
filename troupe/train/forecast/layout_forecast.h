// A recipe on any number of ranks of a machine, before any is there: the list that they would run
// (step_work.h), what its actions cost (plan/step_costs.h), and when each would happen.
//
// Seconds of a unit's forward for T tokens, with the machine's rates:
//   2 T A / products + 2 T X imbalance / experts + 2 T core keys / attention
//     + 2 saved bytes / bandwidth + overhead
// A: weights of dense products, X: of the experts that a token meets. Backward: twice the products,
// 2.5 times the core, twice the bytes. The head's backward is in its forward. What is exchanged
// with expert ranks, each way: T rows x the ranks that a token's K experts lie on, other than its
// own; in two levels first T rows x the other nodes that they lie on, between nodes, and then those
// ranks' rows inside; by all_gather T rows x all other ranks. Back under `exact`: T K rows. Laying
// those rows out moves 2 T (min(W, K) + the ranks that a token meets) rows in each pass; under
// `wire: int8` those that go out are written packed, and those that come are read so and written
// whole. The forward waits for the numbers of rows (`dispatch` of the machine). The update reads
// and writes 28 bytes a parameter, 32 where values are of 2 bytes (34 in fp16), after the gradients
// have been read for their norm; muon's directions, 4 bytes an element, are gathered.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "troupe/distributed/mesh/mesh.h"
#include "troupe/plan/machine.h"
#include "troupe/plan/timeline.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {

struct LayoutForecast {
  int64_t world = 1;
  int64_t micro_batch = 1;       // sequences
  ParallelConfig parallel = {};  // resolved
  StepWork work = {};
  Schedule schedule = {};
  RankTimeline rank = {};   // of the slowest
  double step_seconds = 0;  // with what ranks wait for the slowest of them
  double tokens_per_second = 0;
  std::optional<double> mfu = {};  // of the machine's peak; absent: that is not known
};

// Throws one Error of all that does not fit.
LayoutForecast forecast_layout(const Recipe& recipe, int64_t world, const Machine& machine,
                               bool on_gpu);

// What a rank holds at the worst moment: of the same, without its time.
StepMemory layout_memory(const Recipe& recipe, int64_t world, bool on_gpu);

// Every way to lay the recipe on so many ranks (`parallel.expert`, `shard` and with it
// `shard_ranks`, all or those of a host, and `train.micro_batch`, that the recipe leaves open)
// whose memory fits, the fastest first; of equals the one with less memory. Without their schedules
// and the slots of their timelines. Of more than kCostedMicrobatches on a rank so many are costed,
// and each further one takes as long as the last of them.
inline constexpr int64_t kCostedMicrobatches = 6;
std::vector<LayoutForecast> layouts_that_fit(const Recipe& recipe, int64_t world,
                                             const Machine& machine, bool on_gpu, double memory);

// A batch of all ranks, each of which gets so many microbatches: weak scaling from one rank on.
Recipe with_batch_of(const Recipe& recipe, int64_t world);

Mesh mesh_of(const LayoutForecast& forecast);

// Seconds of a step that was measured on one rank (`troupe bench`): rates and overhead of `machine`
// are scaled so that the forecast of one rank is that.
Machine calibrated(const Recipe& recipe, const Machine& machine, bool on_gpu, double seconds);

}  // namespace troupe
