// Runs one kernel where its tensors live: on the CPU over PyTorch's threads, on a GPU over
// PyTorch's current stream.
//   run(x.device(), args, permute_cpu, &CudaKernels::permute);
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DeviceGuard.h>

#include "troupe/core/check.h"
#include "troupe/core/device/pool.h"
#include "troupe/ops/support/cuda_plugin.h"
#include "troupe/ops/support/shared_gpu.h"

namespace troupe {

inline constexpr int kSharedWaves = 4;  // kernels/moe_sm90

Pool torch_pool();  // at::parallel_for; inside a parallel region it runs serially

// Kernels that can leave room for others' (Args::waves) do so where there are any.
template <class Args>
void run_cuda(const c10::Device& device, Args args,
              void (*CudaKernels::*kernel)(const Args&, cudaStream_t)) {
  const CudaPlugin& plugin = cuda_plugin_on(device.index());
  const c10::DeviceGuard guard(device);
  if constexpr (requires { args.waves; }) args.waves = shares_gpu() ? kSharedWaves : 1;
  (plugin.kernels.*kernel)(args, plugin.current_stream(device.index()));
}

template <class Args>
void run(const c10::Device& device, const Args& args, void (*cpu)(const Args&, const Pool&),
         void (*CudaKernels::*cuda)(const Args&, cudaStream_t)) {
  if (device.is_cpu()) return cpu(args, torch_pool());
  TROUPE_CHECK(device.is_cuda(), "no kernel for device", device.str());
  run_cuda(device, args, cuda);
}

}  // namespace troupe
