#include "troupe/ops/support/cuda_device.h"

#include <dlfcn.h>

#include <array>

namespace troupe {

std::string cuda_device_name(int device) {
  // cuDeviceGet(CUdevice*, int) and cuDeviceGetName(char*, int, CUdevice), CUdevice an int; 0:
  // well.
  using GetDevice = int (*)(int*, int);
  using GetName = int (*)(char*, int, int);
  void* const driver = ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);  // loaded, or not in use
  if (driver == nullptr) return {};
  const auto get_device = reinterpret_cast<GetDevice>(::dlsym(driver, "cuDeviceGet"));
  const auto get_name = reinterpret_cast<GetName>(::dlsym(driver, "cuDeviceGetName"));
  std::array<char, 256> name = {};
  int handle = 0;
  const bool known = get_device != nullptr && get_name != nullptr &&
                     get_device(&handle, device) == 0 &&
                     get_name(name.data(), static_cast<int>(name.size()), handle) == 0;
  ::dlclose(driver);
  return known ? name.data() : "";
}

}  // namespace troupe
