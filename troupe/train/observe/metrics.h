// What steps are worth, as records for log.jsonl, TensorBoard and the step line.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "troupe/train/observe/health.h"
#include "troupe/train/observe/record.h"
#include "troupe/train/observe/step_report.h"

namespace troupe {

// Sums over the steps since the last line. MoE counts stay on the device until loads() asks.
class Interval {
 public:
  void add(const StepReport& report, double step_seconds, double wait_seconds);
  void clear() { *this = {}; }
  // Adds what the other ranks saw of experts and auxiliary losses; each rank calls it, with equal
  // steps behind it. Absent: one rank.
  void add_other_ranks(const SumOver& sum);

  int64_t steps() const { return steps_; }
  double loss() const;          // mean over all targets of the finite steps; NaN: there is none
  double step_seconds() const;  // mean
  double tokens_per_second() const;
  double wait_fraction() const;  // of the time
  // Of each MoE layer, in the model's order; waits for the device.
  std::vector<LayerLoad> loads() const;
  // Mean over layers, microbatches and steps of each auxiliary loss, its coefficient taken out.
  std::map<std::string, double> aux() const;

 private:
  int64_t steps_ = 0, finite_ = 0, tokens_ = 0;
  double loss_ = 0, weight_ = 0, seconds_ = 0, wait_ = 0;
  std::map<int64_t, std::vector<MoeStats>> moe_;
  std::map<std::string, std::pair<at::Tensor, int64_t>> aux_;
};

// Layers' measures: mean over layers, and the worst one; per layer as lists.
void add_moe(Record& record, const std::vector<LayerLoad>& loads,
             const std::map<std::string, double>& aux);

}  // namespace troupe
