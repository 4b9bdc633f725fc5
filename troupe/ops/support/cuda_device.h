// What the CUDA driver says of a device, asked of the driver alone: there is none to link with
// where there is no GPU. Nothing here makes a context.
#pragma once

#include <string>

namespace troupe {

int cuda_device_count();                   // 0 where the driver is not in use yet, too
std::string cuda_device_name(int device);  // "NVIDIA H200"; empty where it cannot be known
int cuda_device_capability(int device);    // 10 major + minor; 0 where it cannot be known

}  // namespace troupe
