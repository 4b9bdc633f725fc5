// What the CUDA driver says of a device, asked of the driver alone: there is none to link with
// where there is no GPU.
#pragma once

#include <string>

namespace troupe {

std::string cuda_device_name(int device);  // "NVIDIA H200"; empty where it cannot be known

}  // namespace troupe
