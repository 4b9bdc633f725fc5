// Chooses what a recipe leaves open in `parallel` and train.micro_batch for the available ranks,
// and says why.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/plan/machine.h"
#include "troupe/train/forecast/layout_forecast.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {

// The inputs of layout_faults() and resolved() for a recipe on `world` ranks.
LayoutNeeds needs_of(const Recipe& recipe, int64_t world, int64_t per_host);
// `config` with every choice made. Throws one Error with all faults.
ParallelConfig settled(const ParallelConfig& config, const LayoutNeeds& needs);

// The machine model for costs: run.machine's file, or default figures for its device; defaults
// also replace links that the file lacks.
Machine machine_of(const Recipe& recipe, bool on_gpu);

struct RanksAtHand {
  int64_t world = 1;
  int64_t per_host = 1;
  double memory = 0;  // of a rank's device; 0: unknown
  bool on_gpu = false;
};

struct LayoutChoice {
  ParallelConfig parallel = {};  // resolved, unless it has faults: settled() throws them
  int64_t micro_batch = 1;       // sequences
  std::string micro_why = {};    // "given", "chosen: ..."
  std::string why = {};          // a line for the log
  double seconds = 0;            // forecast for a step
  static void visit(auto& c, auto&& f) {
    f("parallel", c.parallel);
    f("micro_batch", c.micro_batch);
    f("micro_why", c.micro_why);
    f("why", c.why);
    f("seconds", c.seconds);
  }
};

// The fastest of the layouts that the recipe leaves open (find_layouts() simulates the schedule of
// each with the machine's rates) and that need at most kMostMemory of the memory. Tensor, context
// and pipeline ranks, and slices of experts, that the recipe leaves open are 1 wherever that fits,
// except for GPUs of several hosts where each further axis makes the step shorter by kWorthAnAxis:
// links between hosts are what forecasts are least sure of. Among those within kAlike of the
// fastest with as many axes, the simplest: ZeRO-1, then no sharding, then FSDP; over all ranks,
// then over those of a host; experts over fewer ranks; one stage a rank; the larger microbatch. If
// none fits, the one with the least memory. Settings of the recipe are kept, even if they do not
// fit: layout_faults reports that. Experts over several hosts use two_level dispatch. Deterministic
// in its arguments.
inline constexpr double kAlike = 1.02, kMostMemory = 0.9, kWorthAnAxis = 1.1;
LayoutChoice choose_layout(const Recipe& recipe, const RanksAtHand& ranks, const Machine& machine);

// Which of `fit`, the fastest first and not empty, that is; `given`: what the recipe says.
size_t chosen_of(const std::vector<LayoutForecast>& fit, const ParallelConfig& given,
                 const RanksAtHand& ranks);

// Why that is not the first, by the rules of choose_layout(); empty where it is. Rows are counted
// from 1.
std::string why_not_first(const std::vector<LayoutForecast>& fit, size_t chosen,
                          const ParallelConfig& given, const RanksAtHand& ranks);

// "no layout of 8 ranks fits: the fullest rank of the best (zero1, stages over 4) wants 92.0
// of 72.0 GiB, 41.0 of them activations; train.recompute="1" makes it 66.0". `least`: of all
// layouts the one with the least memory.
std::string nothing_fits(const Recipe& recipe, const LayoutForecast& least,
                         const RanksAtHand& ranks);

// The parts of a step, each with its name: "other stages".
struct StepPart {
  const char* name;
  double RankTimeline::*seconds;
};
inline constexpr StepPart kStepParts[] = {
    {"computing", &RankTimeline::compute},      {"experts' rows", &RankTimeline::exchange},
    {"tokens and keys", &RankTimeline::tokens}, {"gathers and sums", &RankTimeline::exposed},
    {"other stages", &RankTimeline::bubble},    {"the update", &RankTimeline::update}};
// "12.3 ms a step: 10.1 ms less for other stages, 0.8 ms more for computing": what `best` needs
// less than `next`, the largest parts first.
std::string why_faster(const LayoutForecast& best, const LayoutForecast& next);

// Candidates for train.micro_batch, largest first: the recipe's value; or divisors of the batch
// with at most 8,192 tokens (16,384 on a GPU), preferably those that give all ranks equally many
// microbatches, else those that give each at least one.
std::vector<int64_t> open_micro_batches(const Recipe& recipe, int64_t world, bool on_gpu);

// train.micro_batch for a resolved layout: the largest of open_micro_batches() that needs at most
// 90 % of the memory, else the smallest.
struct MicroBatchChoice {
  int64_t sequences = 1;
  std::string why;  // "given", "chosen: ..."
};
MicroBatchChoice choose_micro_batch(const Recipe& recipe, const RanksAtHand& ranks);

}  // namespace troupe
