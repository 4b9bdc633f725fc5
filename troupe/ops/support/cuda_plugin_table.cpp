// libtroupe_cuda.so's one exported function: hands out the addresses of its launchers.
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "troupe/core/device/cuda_check.h"
#include "troupe/ops/support/cuda_plugin.h"

namespace troupe {

#define TROUPE_DECLARE(name, Args) void name##_cuda(const Args&, cudaStream_t);
TROUPE_CUDA_KERNELS(TROUPE_DECLARE)
#undef TROUPE_DECLARE
bool runs_build_code();  // kernels/device/build_code.h
bool runs_sm90_code();
int64_t cudnn_attention_workspace_bytes(const AttentionPlan& plan);  // cudnn_plans.cpp
void cudnn_attention_run(const AttentionPlan& plan, const CudnnAttentionCall& call);

namespace {

cudaStream_t current_stream(int device) {
  return c10::cuda::getCurrentCUDAStream(static_cast<c10::DeviceIndex>(device)).stream();
}

int compute_capability(int device) {
  int major = 0, minor = 0;
  TROUPE_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  TROUPE_CUDA_CHECK(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return major * 10 + minor;
}

template <bool (*kAsk)()>
bool ask_on(int device) {
  const c10::cuda::CUDAGuard guard(static_cast<c10::DeviceIndex>(device));
  return kAsk();
}

}  // namespace
}  // namespace troupe

extern "C" __attribute__((visibility("default"))) void troupe_fill_cuda_plugin(
    troupe::CudaPlugin* out) {
#define TROUPE_FILL(name, Args) out->kernels.name = troupe::name##_cuda;
  TROUPE_CUDA_KERNELS(TROUPE_FILL)
#undef TROUPE_FILL
  out->current_stream = troupe::current_stream;
  out->compute_capability = troupe::compute_capability;
  out->runs_build_code = troupe::ask_on<troupe::runs_build_code>;
  out->runs_sm90_code = troupe::ask_on<troupe::runs_sm90_code>;
#ifdef TROUPE_CUDNN_FRONTEND
  out->attention = {troupe::cudnn_attention_workspace_bytes, troupe::cudnn_attention_run};
#endif
}
