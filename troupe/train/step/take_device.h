// How PyTorch computes on a run's device, said before its first kernel there.
#pragma once

#include <c10/core/Device.h>

#include "troupe/train/recipe/recipe.h"

namespace troupe {

// Makes a GPU this thread's device, where PyTorch's operators are repeatable as `run.deterministic`
// asks and kernels are those of `run.trial_kernels`. Nothing for the CPU.
void take_device(const c10::Device& device, const RunConfig& run);

}  // namespace troupe
