// CUDA graphs of what a thread issues to a device: captured once, replayed as often as wanted.
//
// What is captured runs on a stream of its own, and all memory that it allocates, on this thread or
// on autograd's, comes from one private pool, which the graphs of one DeviceGraphs share: at most one
// of them is between its replay and the last use of what it wrote. A capture runs nothing. A replay
// writes to the same addresses each time, so tensors made during the capture are read behind it, for
// as long as the next replay of any of them has not begun; freed ones must not be read.
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
