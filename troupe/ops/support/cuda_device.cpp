#include "troupe/ops/support/cuda_device.h"

#include <dlfcn.h>

#include <array>

namespace troupe {
namespace {

// The driver where it is loaded, or not in use. Of its functions 0 is: well; CUdevice is an int.
class Driver {
 public:
  Driver() : library_(::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD)) {}
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;
  ~Driver() {
    if (library_ != nullptr) ::dlclose(library_);
  }

  // Whether the driver has such a function, and it went well.
  template <class... Args>
  bool operator()(const char* name, Args... args) const {
    if (library_ == nullptr) return false;
    const auto call = reinterpret_cast<int (*)(Args...)>(::dlsym(library_, name));
    return call != nullptr && call(args...) == 0;
  }

 private:
  void* library_;
};

}  // namespace

int cuda_device_count() {
  int count = 0;
  return Driver()("cuDeviceGetCount", &count) ? count : 0;
}

std::string cuda_device_name(int device) {
  const Driver driver;
  std::array<char, 256> name = {};
  int handle = 0;
  const bool known = driver("cuDeviceGet", &handle, device) &&
                     driver("cuDeviceGetName", name.data(), static_cast<int>(name.size()), handle);
  return known ? name.data() : "";
}

int cuda_device_capability(int device) {
  constexpr int kMajor = 75, kMinor = 76;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...
  const Driver driver;
  int handle = 0, major = 0, minor = 0;
  const bool known = driver("cuDeviceGet", &handle, device) &&
                     driver("cuDeviceGetAttribute", &major, kMajor, handle) &&
                     driver("cuDeviceGetAttribute", &minor, kMinor, handle);
  return known ? 10 * major + minor : 0;
}

}  // namespace troupe
