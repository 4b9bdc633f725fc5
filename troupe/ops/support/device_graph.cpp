#include "troupe/ops/support/device_graph.h"

#include "troupe/ops/support/cuda_plugin.h"

namespace troupe {

std::unique_ptr<DeviceGraphs> device_graphs(const c10::Device& device) {
  const auto make = reinterpret_cast<MakeDeviceGraphs>(cuda_plugin_symbol(kMakeDeviceGraphs));
  return std::unique_ptr<DeviceGraphs>(make(device));
}

}  // namespace troupe
