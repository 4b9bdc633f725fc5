// What comes after a step: a log line, a record, an evaluation, a comparison of replicas, a save.
#pragma once

#include <cstdint>
#include <string>

#include "troupe/train/loop/run_context.h"

namespace troupe {

// By this rank's clock and signals; as agreed (step_agreement.h), the same on all ranks.
struct StepDuties {
  bool line = false, record = false, eval = false, replicas = false, save = false;
  bool save_asked = false;  // by a signal
  bool status = false;
  bool save_failed = false;
  std::string why_save;
};

class Cadences {
 public:
  // The first ten steps from `resumed_step` (below 0: a new run) have a line each.
  Cadences(const RunContext& run, int64_t resumed_step);

  // Once a step, of the one from `before` to `after`.
  StepDuties due(const Position& before, const Position& after);

 private:
  bool line_due(const Position& before, const Position& after, double now);

  const RunContext& run_;
  const int64_t first_step_;
  Cadence line_, record_, eval_, save_time_, save_steps_, replicas_;
  double last_line_ = -1;
};

}  // namespace troupe
