#include "troupe/train/forecast/device.h"

#include "troupe/core/check.h"
#include "troupe/ops/support/cuda_plugin.h"

namespace troupe {

c10::Device device_of(DeviceKind kind, int64_t local_rank) {
  const bool there = has_cuda();
  if (kind == DeviceKind::kCuda && !there) {
    fail(Code::kNoDevice, "run.device",
         "cuda is asked for, and no CUDA device with a driver is here. With run.device=cpu the "
         "recipe runs on the processor");
  }
  if (!there || kind == DeviceKind::kCpu) return {c10::kCPU};
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank)};
}

}  // namespace troupe
