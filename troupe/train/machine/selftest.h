// Checks this build on this machine in a second or two: the operators of a run, each against
// another way to compute the same.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <vector>

namespace troupe {

struct SelfCheck {
  std::string name;  // "experts: one by one, backward too"
  double error = 0;  // largest difference relative to the largest value
  double limit = 0;  // the check fails above it, and for NaN
  bool ok() const { return error <= limit; }
};

// Calls `report` after each check. An operator that throws fails; its name has the reason.
std::vector<SelfCheck> selftest(const c10::Device& device,
                                const std::function<void(const SelfCheck&)>& report);

}  // namespace troupe
