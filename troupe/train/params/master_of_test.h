// For tests: a bucket's masters in f32, the buffer itself or a new tensor of its halves.
#pragma once

#include "troupe/train/params/param_store.h"

namespace troupe {

inline at::Tensor master_of(const Bucket& b) {
  return b.in_halves() ? joined(b.own.detach(), b.low) : b.master;
}

}  // namespace troupe
