// Metrics of steps as records for log.jsonl, TensorBoard and the step line.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "troupe/nn/config/config.h"
#include "troupe/nn/parts/context.h"
#include "troupe/train/observe/health.h"
#include "troupe/train/observe/record.h"
#include "troupe/train/observe/step_report.h"

namespace troupe {

// Sums over the steps since the last line. MoE counts stay on the device until loads() asks.
class Interval {
 public:
  void add(const StepReport& report, double step_seconds, double wait_seconds);
  void clear() { *this = {}; }
  // Sums expert counts and auxiliary losses over ranks, of all the model's layers, whichever ranks
  // have them: two collectives of sizes that the model gives, on every rank, with equal steps on
  // each (MF12). Empty `sum`: one rank.
  void add_other_ranks(const SumOver& sum, const std::vector<MoeUnit>& layers,
                       const c10::Device& device);

  int64_t steps() const { return steps_; }
  double loss() const;          // mean over all targets of finite steps; NaN: none
  double step_seconds() const;  // mean
  double tokens_per_second() const;
  double wait_fraction() const;  // fraction of the time
  // The load of each MoE layer, in the model's order. Waits for the device.
  std::vector<LayerLoad> loads() const;
  // Mean over layers, microbatches and steps of each auxiliary loss, without its coefficient.
  std::map<std::string, double> aux() const;
  // Operands in 8 bits with values that were cut off, summed over the steps; absent where no recipe
  // cuts any off. Waits for the device.
  std::optional<int64_t> fp8_saturated() const;

 private:
  int64_t steps_ = 0, finite_ = 0, tokens_ = 0;
  double loss_ = 0, weight_ = 0, seconds_ = 0, wait_ = 0;
  std::map<int64_t, std::vector<MoeStats>> moe_;
  std::map<std::string, std::pair<at::Tensor, int64_t>> aux_;
  at::Tensor fp8_saturated_;  // int64 [1]
};

// Adds MoE metrics: mean and worst over layers, and lists per layer.
void add_moe(LogRecord& record, const std::vector<LayerLoad>& loads,
             const std::map<std::string, double>& aux);

}  // namespace troupe
