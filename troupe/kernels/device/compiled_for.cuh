// Asks of a kernel's code what its device code asks of __CUDA_ARCH__. The device's own number does not
// tell: a GPU runs what was compiled for an earlier one too.
#pragma once

#include <cuda_runtime.h>

#include "troupe/core/device/cuda_check.h"

namespace troupe {

// Whether the code of `kernel` that runs on the current device was compiled for `architecture` (90:
// Hopper) or a later one.
template <class... Args>
bool compiled_for(int architecture, void (*kernel)(Args...)) {
  cudaFuncAttributes found = {};
  TROUPE_CUDA_CHECK(cudaFuncGetAttributes(&found, reinterpret_cast<const void*>(kernel)));
  return found.ptxVersion >= architecture;
}

}  // namespace troupe
