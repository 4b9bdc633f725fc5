// The CUDA half of Troupe, libtroupe_cuda.so, which is beside libtroupe.so. It is opened once, on
// the first of these calls; a program that may use a GPU calls has_cuda() before anything asks
// PyTorch whether there is CUDA, because PyTorch remembers its first answer.
#pragma once

#include <string>
#include <vector>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/kernels/cuda_kernels.h"
#include "troupe/ops/support/cudnn_attention.h"
#include "troupe/ops/support/gpu_code.h"

namespace troupe {

struct CudaPlugin {
  CudaKernels kernels;
  cudaStream_t (*current_stream)(int device) = nullptr;  // PyTorch's, of this thread
  int (*compute_capability)(int device) = nullptr;       // 90 for a Hopper GPU
  bool (*runs_build_code)(int device) = nullptr;         // kernels/device/build_code.h
  bool (*runs_sm90_code)(int device) = nullptr;
  CudnnAttention attention;  // null where the plug-in was built without cuDNN's frontend
};

bool has_cuda();                  // a driver, a device that the build has code for, and the plug-in
const CudaPlugin& cuda_plugin();  // or an Error that says which of these is missing; code: E7101
std::string why_no_cuda();        // empty where has_cuda()

// Of why_no_cuda(): GPUs are here, and the build has code for none of them (gpu_code.h). Else empty.
std::string why_no_gpu_code();
// Why this device runs no kernel of the build, by a kernel that is looked up there, which makes the
// device's context; empty: it does. Where has_cuda().
std::string why_no_code_on(int device);
// The plug-in, for kernels on this device. E7101 where why_no_code_on() has a reason.
const CudaPlugin& cuda_plugin_on(int device);
std::vector<GpuFound> gpus_here();  // those that a process sees; empty without a driver
DriverRules driver_rules();         // of the environment
GpuKind gpu_kind(int device);       // where has_cuda()

void* cuda_plugin_symbol(const char* name);  // a function that a layer above put into the plug-in

}  // namespace troupe
