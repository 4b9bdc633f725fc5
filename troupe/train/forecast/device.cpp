#include "troupe/train/forecast/device.h"

#include <c10/core/impl/VirtualGuardImpl.h>

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

c10::Device device_of_rank(const Recipe& recipe, int64_t local_rank) {
  const c10::Device own = device_of(recipe.run.device, local_rank);
  const CommBackend backend = recipe.parallel.backend;
  if (own.is_cpu()) {
    if (backend != CommBackend::kNccl) return own;
    fail(Code::kBadValue, "parallel.backend",
         "nccl moves tensors between GPUs, and no CUDA device with a driver is here: take auto or "
         "gloo");
  }
  const int64_t there = c10::impl::VirtualGuardImpl(own.type()).deviceCount();
  if (local_rank < there) return own;
  if (backend == CommBackend::kGloo) return device_of(recipe.run.device, local_rank % there);
  fail(Code::kNoDevice, "the process with LOCAL_RANK " + std::to_string(local_rank),
       "has no GPU of its own: this machine has", there,
       "of them. Start one rank for each, or let ranks share them, through host memory, with "
       "parallel.backend=gloo");
}

}  // namespace troupe
