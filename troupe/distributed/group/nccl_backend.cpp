// NCCL between GPUs: part of libtroupe_cuda.so, found by name (group_backend.h).
#define USE_C10D_NCCL

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "troupe/distributed/group/group_backend.h"

extern "C" c10d::Backend* troupe_make_nccl(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                           int size, int64_t timeout_ms,
                                           const troupe::GroupOptions& how) {
  auto options = c10d::ProcessGroupNCCL::Options::create(how.high_priority);
  options->timeout = std::chrono::milliseconds(timeout_ms);
  if (how.max_blocks > 0) options->config.maxCTAs = static_cast<int>(how.max_blocks);
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options).release();
}
