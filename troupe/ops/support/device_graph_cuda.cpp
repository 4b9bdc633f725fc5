// Part of libtroupe_cuda.so: graphs as PyTorch captures them.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "troupe/ops/support/device_graph.h"

namespace troupe {
namespace {

class CudaDeviceGraph : public DeviceGraph {
 public:
  void replay() override { graph.replay(); }

  at::cuda::CUDAGraph graph;
};

// `later` does what comes next behind all that `earlier` has to do.
void order(const c10::cuda::CUDAStream& earlier, const c10::cuda::CUDAStream& later) {
  c10::cuda::CUDAEvent event;
  event.record(earlier);
  event.block(later);
}

class CudaDeviceGraphs : public DeviceGraphs {
 public:
  explicit CudaDeviceGraphs(const c10::Device& device)
      : device_(device), stream_(c10::cuda::getStreamFromPool(false, device.index())) {}

  void on_stream(const std::function<void()>& f) override {
    const c10::cuda::CUDAStream caller = c10::cuda::getCurrentCUDAStream(device_.index());
    order(caller, stream_);
    {
      const c10::cuda::CUDAStreamGuard guard(stream_);
      f();
    }
    order(stream_, caller);
  }

  std::unique_ptr<DeviceGraph> capture(const std::function<void()>& f) override {
    c10::cuda::device_synchronize();
    // The pool cannot take blocks that the eager steps left.
    c10::cuda::CUDACachingAllocator::emptyCache();
    auto out = std::make_unique<CudaDeviceGraph>();
    const c10::cuda::CUDAStreamGuard guard(stream_);
    // Of this thread's calls alone: a checkpoint may be on its way to the disk beside it. Autograd's
    // threads issue to the stream that is captured, in any mode.
    out->graph.capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
    try {
      f();
    } catch (...) {
      try {
        out->graph.capture_end();
      } catch (const std::exception&) {  // the first error says more
      }
      throw;
    }
    out->graph.capture_end();
    return out;
  }

 private:
  const c10::Device device_;
  const c10::cuda::CUDAStream stream_;
  const c10::MempoolId_t pool_ = at::cuda::graph_pool_handle();
};

}  // namespace
}  // namespace troupe

extern "C" __attribute__((visibility("default"))) troupe::DeviceGraphs* troupe_make_device_graphs(
    const c10::Device& device) {
  return std::make_unique<troupe::CudaDeviceGraphs>(device).release();
}
