// Takes the host's seconds of a phase of a step, while the phase is under way.
#pragma once

#include <algorithm>
#include <chrono>

#include "troupe/distributed/status/pulse.h"
#include "troupe/train/observe/step_report.h"

namespace troupe {

// While it lives, `pulse` is in the phase. At its end it adds what passed to `part` of `seconds`,
// and to that of `seconds.own` what passed without the waits for other ranks.
class PhaseTimer {
 public:
  // Where in the step: `unit` of `units`, and a microbatch. Below 0: none.
  struct Place {
    int unit = -1, units = 0, microbatch = -1;
  };

  PhaseTimer(Pulse& pulse, Phase phase, StepSeconds& seconds, double PhaseSeconds::*part,
             const Place& place)
      : pulse_(pulse),
        seconds_(seconds),
        part_(part),
        scope_(pulse, phase, std::max(place.unit, 0), place.unit < 0 ? 0 : place.units,
               place.microbatch) {}
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;
  ~PhaseTimer() {
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - start_;
    const double waited = pulse_.waited_seconds() - waited_;
    seconds_.*part_ += passed.count();
    seconds_.own.*part_ += passed.count() - waited;
  }

 private:
  Pulse& pulse_;
  StepSeconds& seconds_;
  double PhaseSeconds::*part_;
  PulseScope scope_;
  double waited_ = pulse_.waited_seconds();
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace troupe
