// How a group's collectives share the GPU with computation: NCCL's. Gloo has neither.
#pragma once

#include <cstdint>

namespace troupe {

struct GroupOptions {
  bool high_priority = false;  // on a stream whose blocks go before those of computation
  int64_t max_blocks = 0;      // SMs that one collective takes at most (maxCTAs); 0: NCCL's choice
  bool staged = false;         // through host memory and Gloo (staged_backend.h), not NCCL
};

// NCCL takes no more.
constexpr int64_t kMostBlocks = 64;

}  // namespace troupe
