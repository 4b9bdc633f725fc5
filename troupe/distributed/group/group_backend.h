// What is behind a ProcessGroup: for group.cpp and world.cpp alone.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <string>

#include "troupe/distributed/group/group_options.h"
#include "troupe/distributed/group/process_group.h"

namespace troupe {

struct ProcessGroup::Backend {
  c10::intrusive_ptr<c10d::Backend> c10d;
};

// In libtroupe_cuda.so, by this name: nccl_backend.cpp.
using MakeNccl = c10d::Backend* (*)(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                    int size, int64_t timeout_ms, const GroupOptions& how);
constexpr const char* kMakeNccl = "troupe_make_nccl";

}  // namespace troupe
