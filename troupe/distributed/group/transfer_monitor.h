// Status and fault injection where tokens or keys go between ranks: the pulse is in the phase of
// the transfer, within the unit and microbatch of the phase around it, and the fault point of the
// same name is reached there. By default there is no monitor.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "troupe/core/file/fault.h"
#include "troupe/distributed/status/pulse.h"

namespace troupe {

class TransferMonitor {
 public:
  TransferMonitor() = default;
  // `faults` must outlive it.
  TransferMonitor(std::shared_ptr<Pulse> pulse, const Faults& faults)
      : pulse_(std::move(pulse)), faults_(&faults) {}

  // One transfer, as long as what it gives lives.
  std::optional<PulseScope> begin(Phase phase) const {
    if (!pulse_) return std::nullopt;
    if (!faults_->empty()) {
      const PulseScope scope(*pulse_, phase, PulseScope::Within());
      faults_->at(to_text(phase), pulse_->now().done);
    }
    return std::optional<PulseScope>(std::in_place, *pulse_, phase, PulseScope::Within());
  }

 private:
  std::shared_ptr<Pulse> pulse_ = nullptr;
  const Faults* faults_ = nullptr;
};

}  // namespace troupe
