#include "troupe/train/forecast/mfu.h"

#include <array>
#include <utility>

#include "troupe/ops/support/cuda_device.h"

namespace troupe {

std::optional<double> peak_flops(std::string_view device_name) {
  // The first that the name contains; the narrower names come first.
  constexpr std::array<std::pair<std::string_view, double>, 7> kTera = {{{"H100 PCIe", 756},
                                                                         {"H100 NVL", 835},
                                                                         {"H100", 989.5},
                                                                         {"H200", 989.5},
                                                                         {"A100", 312},
                                                                         {"B200", 2250},
                                                                         {"L40S", 362}}};
  for (const auto& [name, tera] : kTera) {
    if (device_name.find(name) != std::string_view::npos) return tera * 1e12;
  }
  return std::nullopt;
}

std::optional<double> device_peak(const c10::Device& device) {
  return peak_flops(device_name(device));
}

std::string device_name(const c10::Device& device) {
  const std::string name = device.is_cuda() ? cuda_device_name(device.index()) : "";
  return device.str() + (name.empty() ? "" : ", ") + name;
}

}  // namespace troupe
