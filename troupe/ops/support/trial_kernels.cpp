#include "troupe/ops/support/trial_kernels.h"

#include <atomic>

namespace troupe {
namespace {

// One flag for the process, as shares_gpu() is: autograd calls operators on threads of its own.
std::atomic<bool>& flag() {
  static std::atomic<bool> on{false};
  return on;
}

}  // namespace

void set_trial_kernels(bool on) {
  flag() = on;
}

bool trial_kernels() {
  return flag();
}

}  // namespace troupe
