// Is this build right on this machine? The operators that a run stands on, each against another way
// to compute the same, in a second or two.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <vector>

namespace troupe {

struct SelfCheck {
  std::string name;  // "experts: one by one, backward too"
  double error = 0;  // the largest difference, over the largest value
  double limit = 0;  // above it the check failed; not a number fails too
  bool ok() const { return error <= limit; }
};

// `told` is called after each check. An operator that throws fails, with the reason in its name.
std::vector<SelfCheck> selftest(const c10::Device& device,
                                const std::function<void(const SelfCheck&)>& told);

}  // namespace troupe
