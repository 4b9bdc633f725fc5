// Forecasts of the layouts of a recipe that share matrices, rows and layers alike: what the model
// has in memory is counted once for all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "troupe/nn/config/costs.h"
#include "troupe/train/forecast/layout_forecast.h"
#include "troupe/train/forecast/model_memory.h"

namespace troupe {

// A forecast without lists, to order layouts by before their schedules are simulated. On the rank
// with the most work, F and B of a microbatch with what it waits for, M microbatches, P ranks of v
// stages:
//   seconds = M (F + B) + idle + exposed + update
//   idle = (P - 1) (F + B) / v, less 2 (P - 1) W for zb1p, (P - 1) F / 2 for zbv
//   exposed = gathers and reductions beyond the computation that they may run beside
//   memory = values + state + gradients + graphs that wait + workspace + runtime
struct QuickForecast {
  double seconds = 0, memory = 0;
};

class Forecaster {
 public:
  // `parallel` of the recipe must be resolved, except for what operator() is given. If a rank has
  // more than `most` microbatches (in a pipeline: more than fill and drain it), the rest are
  // assumed to take as long as the last of those. `machine` must outlive the forecaster. `like`
  // counted the same model with the same microbatch on ranks that share its matrices and sequences
  // in the same way; null: none did.
  Forecaster(Recipe recipe, int64_t world, const Machine& machine, bool on_gpu, int64_t most,
             const Forecaster* like = nullptr);

  // Both of `parallel`, resolved, with the recipe's tensor, context and pipeline ranks and stages.
  LayoutForecast operator()(const ParallelConfig& parallel) const;
  QuickForecast quick(const ParallelConfig& parallel) const;
  int64_t micro_batch() const { return micro_batch_; }

 private:
  friend class Costing;
  struct Counted {
    ModelMemory memory;
    ModelCosts costs;
  };
  std::vector<StepCosts> costs_of_ranks(const ParallelConfig& parallel, const StepWork& work) const;
  LayoutForecast costed(const ParallelConfig& parallel, int64_t microbatches) const;
  void add_rates(LayoutForecast& out) const;

  Recipe r_;
  int64_t world_;
  const Machine& machine_;
  int64_t most_;
  std::shared_ptr<const Counted> counted_;
  StepWork work_;
  std::vector<int> graphs_;  // of each stage, that wait for their backward; empty: one stage
  double tokens_ = 0, flops_ = 0;
  int64_t micro_batch_ = 1;
};

}  // namespace troupe
