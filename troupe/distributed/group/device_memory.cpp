// Memory of each rank's GPU, opened by the others: part of libtroupe_cuda.so, found by name
// (peer_memory.h).
#include <c10/core/DeviceGuard.h>
#include <cuda_runtime_api.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "troupe/core/device/cuda_check.h"
#include "troupe/distributed/group/peer_memory.h"
#include "troupe/distributed/group/process_group.h"

namespace troupe {
namespace {

constexpr size_t kHandleWords = sizeof(cudaIpcMemHandle_t) / sizeof(int64_t);

std::string reason(int64_t error) {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

class DeviceMemory : public PeerMemory {
 public:
  DeviceMemory(ProcessGroup& group, const c10::Device& device, int64_t bytes) : device_(device) {
    const c10::DeviceGuard guard(device);
    void* memory = nullptr;
    TROUPE_CUDA_CHECK(cudaMalloc(&memory, static_cast<size_t>(bytes)));
    own_ = static_cast<uint8_t*>(memory);
    TROUPE_CUDA_CHECK(cudaMemset(own_, 0, static_cast<size_t>(bytes)));
    TROUPE_CUDA_CHECK(cudaDeviceSynchronize());
    cudaIpcMemHandle_t handle;
    TROUPE_CUDA_CHECK(cudaIpcGetMemHandle(&handle, own_));
    std::vector<int64_t> record(kHandleWords + 1);
    std::memcpy(record.data(), &handle, sizeof handle);
    record.back() = ::getpid();
    const auto all = gather_numbers(group, device, record);
    NotMapped failed;
    for (size_t w = 0; w < all.size(); ++w) {
      if (all[w] == record) {
        of_.push_back(own_);
        continue;
      }
      std::memcpy(&handle, all[w].data(), sizeof handle);
      const cudaError_t error =
          cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess);
      if (error == cudaSuccess) of_.push_back(static_cast<uint8_t*>(memory));
      if (error == cudaSuccess || failed.peer >= 0) continue;
      (void)cudaGetLastError();
      failed = {static_cast<int64_t>(w), int64_t{error}};
    }
    try {
      require_mapped(group, device, failed, "GPU memory", reason);
    } catch (...) {
      give_back();
      throw;
    }
  }
  // The caller knows that no peer reads it any more (SymmetricHeap).
  ~DeviceMemory() override { give_back(); }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

 private:
  void give_back() {
    const c10::DeviceGuard guard(device_);
    for (uint8_t* const memory : of_) {
      if (memory != own_) (void)cudaIpcCloseMemHandle(memory);
    }
    (void)cudaFree(own_);
  }

  c10::Device device_;
};

}  // namespace
}  // namespace troupe

extern "C" troupe::PeerMemory* troupe_make_device_memory(troupe::ProcessGroup& group,
                                                         const c10::Device& device, int64_t bytes) {
  return std::make_unique<troupe::DeviceMemory>(group, device, bytes).release();
}
