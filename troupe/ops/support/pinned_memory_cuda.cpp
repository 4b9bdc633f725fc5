// Part of libtroupe_cuda.so: pages that the driver locks.
#include <cuda_runtime_api.h>

#include "troupe/ops/support/pinned_memory.h"

namespace {

const char* reason(cudaError_t code) {
  if (code == cudaSuccess) return nullptr;
  (void)cudaGetLastError();  // clears the error: the caller reports it
  return cudaGetErrorString(code);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const char* troupe_pin_host_memory(void* begin,
                                                                                     size_t bytes) {
  return reason(cudaHostRegister(begin, bytes, cudaHostRegisterPortable));
}

extern "C" __attribute__((visibility("default"))) const char* troupe_unpin_host_memory(
    void* begin) {
  return reason(cudaHostUnregister(begin));
}
