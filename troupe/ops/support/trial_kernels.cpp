#include "troupe/ops/support/trial_kernels.h"

#include <atomic>

namespace troupe {
namespace {

// One flag for the process, as shares_gpu() is: autograd calls operators on threads of its own.
std::atomic<bool>& trial_flag() {
  static std::atomic<bool> on{false};
  return on;
}

}  // namespace

void set_trial_kernels(bool on) {
  trial_flag() = on;
}

bool trial_kernels() {
  return trial_flag();
}

}  // namespace troupe
