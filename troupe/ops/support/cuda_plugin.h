// The CUDA half of Troupe, libtroupe_cuda.so, which is beside libtroupe.so. It is opened once, on
// the first of these calls; a program that may use a GPU calls has_cuda() before anything asks
// PyTorch whether there is CUDA, because PyTorch remembers its first answer.
#pragma once

#include <string>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/kernels/cuda_kernels.h"
#include "troupe/ops/support/cudnn_attention.h"

namespace troupe {

struct CudaPlugin {
  CudaKernels kernels;
  cudaStream_t (*current_stream)(int device) = nullptr;  // PyTorch's, of this thread
  int (*compute_capability)(int device) = nullptr;       // 90 for a Hopper GPU
  CudnnAttention attention;  // null where the plug-in was built without cuDNN's frontend
};

bool has_cuda();                             // a driver, a device and the plug-in
const CudaPlugin& cuda_plugin();             // or an Error that says which of the three is missing
std::string why_no_cuda();                   // empty where has_cuda()
void* cuda_plugin_symbol(const char* name);  // a function that a layer above put into the plug-in

}  // namespace troupe
