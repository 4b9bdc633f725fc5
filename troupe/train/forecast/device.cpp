#include "troupe/train/forecast/device.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "troupe/core/check.h"
#include "troupe/ops/support/cuda_plugin.h"

namespace troupe {
namespace {

// Of several GPUs one may be of a kind that the build has no code for.
c10::Device with_code(const c10::Device& gpu) {
  const std::string why = why_no_code_on(gpu.index());
  if (!why.empty()) fail(Code::kNoDevice, "run.device", why, "or take run.device=cpu");
  return gpu;
}

}  // namespace

std::string no_code_line(DeviceKind kind, const std::string& why) {
  const std::string ends = "run.device: cuda ends with E7101 here, because ";
  if (kind == DeviceKind::kCpu) return {};
  if (kind == DeviceKind::kCuda) {
    return ends + (why.empty() ? "no CUDA device with a driver is here" : why);
  }
  return why.empty() ? "" : "run.device: auto takes the processor, because " + why;
}

std::string no_code_line(DeviceKind kind) {
  return kind == DeviceKind::kCpu || has_cuda() ? "" : no_code_line(kind, why_no_gpu_code());
}

std::string no_device_text(const std::string& why) {
  return "cuda is asked for, and " + (why.empty() ? "no CUDA device with a driver is here" : why) +
         ". With run.device=cpu the recipe runs on the processor";
}

c10::Device device_of(DeviceKind kind, int64_t local_rank) {
  const bool there = has_cuda();
  if (kind == DeviceKind::kCuda && !there) {
    fail(Code::kNoDevice, "run.device", no_device_text(why_no_gpu_code()));
  }
  if (!there || kind == DeviceKind::kCpu) return {c10::kCPU};
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(local_rank)};
}

int64_t gpus_for(DeviceKind kind) {
  const c10::Device first = device_of(kind);
  return first.is_cpu() ? 0 : c10::impl::VirtualGuardImpl(first.type()).deviceCount();
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
  const int64_t there = gpus_for(recipe.run.device);
  if (local_rank < there) return with_code(own);
  if (backend == CommBackend::kGloo) {
    return with_code(device_of(recipe.run.device, local_rank % there));
  }
  fail(Code::kNoDevice, "the process with LOCAL_RANK " + std::to_string(local_rank),
       "has no GPU of its own: this machine has", there,
       "of them. Start one rank for each, or let ranks share them, through host memory, with "
       "parallel.backend=gloo");
}

}  // namespace troupe
