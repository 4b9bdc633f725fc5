#include "troupe/ops/support/shared_gpu.h"

#include <atomic>

namespace troupe {
namespace {

std::atomic<bool>& flag() {
  static std::atomic<bool> shared{false};
  return shared;
}

}  // namespace

void set_shares_gpu(bool shared) {
  flag() = shared;
}

bool shares_gpu() {
  return flag();
}

}  // namespace troupe
