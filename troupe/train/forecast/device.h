// The device that a run computes on.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "troupe/train/recipe/recipe.h"

namespace troupe {

// The device of that kind with that local index. E7101 if it does not exist, or where the build has
// code for no GPU here.
c10::Device device_of(DeviceKind kind, int64_t local_rank = 0);
// That of a rank of the recipe's run. E7101 where there are fewer GPUs than ranks, unless
// `parallel.backend` is gloo: then ranks take turns and share them; and where a kernel that is looked
// up there has no code.
c10::Device device_of_rank(const Recipe& recipe, int64_t local_rank);

// The GPUs that processes started here see; 0 where a run of that kind computes on the CPU. E7101 as
// device_of().
int64_t gpus_for(DeviceKind kind);

// What a start and `troupe check` warn of where GPUs are here and the build has code for none
// (`why` is why_no_gpu_code() of ops/support/cuda_plugin.h), and for run.device: cuda where none is
// here; empty otherwise, and for run.device: cpu.
std::string no_code_line(DeviceKind kind);
std::string no_code_line(DeviceKind kind, const std::string& why);
// The error of run.device: cuda without a device; `why`: empty, or what why_no_gpu_code() says.
std::string no_device_text(const std::string& why);

}  // namespace troupe
