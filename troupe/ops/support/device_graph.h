// CUDA graphs: the kernels that a function launches are captured once and replayed any number of
// times.
//
// A capture launches nothing. It uses a stream of its own, and allocates, also on autograd's threads,
// from one private memory pool. All graphs of a DeviceGraphs share that pool, so a replay may
// overwrite what another graph wrote: read a graph's results before the next replay of any of them.
// A replay writes to the addresses of the capture: the tensors made then hold its results. A tensor
// that was freed during the capture must not be read.
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <memory>

namespace troupe {

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void replay() = 0;  // on the caller's stream; returns at once
};

class DeviceGraphs {
 public:
  virtual ~DeviceGraphs() = default;

  // Runs f on the stream of captures, behind all that the caller's stream has to do, and lets that
  // wait for f. Before a capture: what a stream needs once, such as a workspace, is made here.
  virtual void on_stream(const std::function<void()>& f) = 0;
  // Captures what f issues. f must not wait for the device, nor copy from memory of the host. If f
  // or the capture throws, so does this, and there is no graph. Gives cached memory back before.
  virtual std::unique_ptr<DeviceGraph> capture(const std::function<void()>& f) = 0;
};

// Of a CUDA device; throws where there is none.
std::unique_ptr<DeviceGraphs> device_graphs(const c10::Device& device);

inline constexpr const char* kMakeDeviceGraphs = "troupe_make_device_graphs";
using MakeDeviceGraphs = DeviceGraphs* (*)(const c10::Device& device);

}  // namespace troupe
