// When a run stops before its last step: SIGTERM, an interrupt, or run.time_limit, on any rank. All
// ranks stop before the same step.
#pragma once

#include <string>

#include "troupe/train/loop/run_context.h"

namespace troupe {

class StopControl {
 public:
  explicit StopControl(const RunContext& run) : run_(run) {}

  // Why this rank should stop now: "interrupt", "SIGTERM" or "time limit 2h"; empty: it continues.
  std::string own_reason() const;
  // True when any rank has a signal. A collective.
  bool signaled() const;

  // What all ranks agreed on; empty: the run continues.
  const std::string& reason() const { return reason_; }
  void stop_for(const std::string& reason) { reason_ = reason; }

  // The time limit leaves room for one more step and a save.
  void step_took(double seconds) { step_seconds_ = seconds; }

 private:
  bool out_of_time() const;

  const RunContext& run_;
  std::string reason_;
  double step_seconds_ = 0;
};

}  // namespace troupe
