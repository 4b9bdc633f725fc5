// Model FLOPs utilization: FLOPs that the model needs (without recomputation, padding, dropped
// tokens) over the device's peak. FLOPs per token: nn/config/costs.h.
#pragma once

#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <string_view>

namespace troupe {

// Dense bf16 peak in FLOP/s by device name, such as "NVIDIA H100 80GB HBM3". Empty if unknown: then
// FLOP/s are shown and MFU is not.
std::optional<double> peak_flops(std::string_view device_name);
std::optional<double> device_peak(const c10::Device& device);

std::string device_name(const c10::Device& device);  // "cpu"; "cuda:0, NVIDIA H200"

}  // namespace troupe
