// How the driver is asked for a kernel's code. Each answer is kept: to be asked costs more where there
// is no code.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <atomic>

#include "troupe/core/device/cuda_check.h"

namespace troupe {

// Whether there is code of `kernel` for the current device.
inline bool has_code(const void* kernel) {
  cudaFuncAttributes found = {};
  const cudaError_t status = cudaFuncGetAttributes(&found, kernel);
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction ||
      status == cudaErrorUnsupportedPtxVersion || status == cudaErrorJitCompilationDisabled) {
    (void)cudaGetLastError();
    return false;
  }
  TROUPE_CUDA_CHECK(status);
  return true;
}

// The answers of one kernel, a device each. Two threads that ask at once get the same.
class LookUps {
 public:
  // False without a device.
  bool operator()(const void* kernel) {
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) {
      (void)cudaGetLastError();
      return false;
    }
    if (device >= static_cast<int>(known_.size())) return has_code(kernel);
    std::atomic<Answer>& known = known_[static_cast<size_t>(device)];
    if (known.load() == Answer::kNotAsked) known = has_code(kernel) ? Answer::kYes : Answer::kNo;
    return known.load() == Answer::kYes;
  }

 private:
  enum class Answer : unsigned char { kNotAsked, kYes, kNo };
  std::array<std::atomic<Answer>, 64> known_ = {};
};

}  // namespace troupe
