// What DistributedDataParallel and fully_shard share: the values of a module's tensors over a
// group. Every rank of the group makes each of these calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "troupe/distributed/group/process_group.h"

namespace torch::nn {
class Module;
}

namespace troupe {

// Parameters with the names of their first registration, in order of registration; a tensor that
// is registered twice comes once. TROUPE_CHECK: each is dense, of a floating type, and on one
// device with the others.
std::vector<std::pair<std::string, at::Tensor>> parameters_of(const torch::nn::Module& module);

// That of the first parameter; the CPU where there is none.
c10::Device device_of_module(const torch::nn::Module& module);

// Refuses a gradient that is not dense, which has no place in a row of gradients.
void require_dense_gradient(const at::Tensor& grad, const std::string& name);

// E2010 where names, sizes, types or requires_grad of parameters and buffers differ over the
// ranks, with the ranks whose module is not that of rank 0 of the group.
void require_same_module(const torch::nn::Module& module, ProcessGroup& group);

// Ranks, by their numbers in the world, whose value is not that of rank 0 of the group.
std::vector<int64_t> ranks_unlike_first(int64_t value, const c10::Device& device,
                                        ProcessGroup& group);

// Makes the values of all tensors those of rank 0 of the group. Types and strides are free.
void broadcast_values(const std::vector<at::Tensor>& tensors, ProcessGroup& group);

// out[i]: whether flags[i] is set on any rank. Waits for the device.
std::vector<bool> set_on_any_rank(const std::vector<bool>& flags, const c10::Device& device,
                                  ProcessGroup& group);

}  // namespace troupe
