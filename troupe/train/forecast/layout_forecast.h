// Forecast of a recipe on any number of ranks of a machine: the schedule that they would execute
// (step_work.h), the costs of its actions (plan/step_costs.h), and its simulated timeline.
//
// Seconds of a unit's forward for T tokens, with the machine's rates:
//   2 T A / products + 2 T X imbalance / experts + 2 T core keys / attention
//     + 2 saved bytes / bandwidth + overhead
// A: weights of dense products; X: weights of a token's experts. Backward: twice the products, 2.5
// times the core, twice the bytes. The head's backward is part of its forward. Expert-parallel
// transfers, each way: the dispatcher's traffic() (dispatcher_config.h), such as T rows x the other
// ranks that hold a token's K experts for all_to_all. Packing those rows moves 2 T (min(W, K) + the
// ranks that hold a token's experts) rows in each pass; `wire: int8` and `fp8` write the outgoing
// rows packed and read the received ones so. The forward waits for the row counts (`dispatch` of
// the machine). The update reads and writes 28 bytes per parameter, 32 for 2-byte values (34 in fp16),
// after gradients were read for their norm; muon's directions, 4 bytes per element, are gathered. It
// takes at least as long as state in host memory comes at the machine's host_link; it goes back
// meanwhile.
// A stage of a pipeline sends its output, T D values, over one link; a table that both of its ends
// read is on both, with its state, and its gradients are summed over both.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "troupe/distributed/mesh/process_mesh.h"
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
  // Timeline of the pipeline's rank that waits least, until the slowest is done, with the peak of
  // the fullest.
  RankTimeline rank = {};
  // One for each rank of a pipeline, without slots; empty: one rank has all layers.
  std::vector<RankTimeline> stages = {};
  double host = 0;    // bytes of state in host memory, of the rank with most (train.offload_state)
  double copies = 0;  // seconds in which its update brings them
  double step_seconds = 0;  // including the wait for the slowest rank
  double tokens_per_second = 0;
  std::optional<double> mfu = {};  // empty if the machine's peak is unknown
};

// Throws one Error with all faults.
LayoutForecast forecast_layout(const Recipe& recipe, int64_t world, const Machine& machine,
                               bool on_gpu);

// The peak memory of the fullest rank, without the timeline; `stage_rank`: of that one of a pipeline.
StepMemory layout_memory(const Recipe& recipe, int64_t world, bool on_gpu,
                         std::optional<int> stage_rank = {});

// Bytes of masters and optimizer state in host memory, of the rank with most.
double layout_host_state(const Recipe& recipe, int64_t world, bool on_gpu);

// The recipe with its batch multiplied by `world`: weak scaling.
Recipe with_batch_of(const Recipe& recipe, int64_t world);

ProcessMesh mesh_of(const LayoutForecast& forecast);

// `machine` with rates and overhead scaled so that the forecast for one rank equals the measured
// `seconds` of a step (`troupe bench`).
Machine calibrated(const Recipe& recipe, const Machine& machine, bool on_gpu, double seconds);

}  // namespace troupe
