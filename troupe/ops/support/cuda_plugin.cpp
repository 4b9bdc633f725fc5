#include "troupe/ops/support/cuda_plugin.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "troupe/core/check.h"
#include "troupe/ops/support/build_info.h"
#include "troupe/ops/support/cuda_device.h"

namespace troupe {
namespace {

struct Opened {
  CudaPlugin plugin;
  std::string problem;
  std::string no_code;  // the problem, where it is that the build has no code for the GPUs here
  void* library = nullptr;
};

bool is_set(const char* variable) {  // as the driver reads them
  const char* const value = std::getenv(variable);
  return value != nullptr && *value != '\0' && std::string_view(value) != "0";
}

std::filesystem::path folder_of_this_library() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&has_cuda), &info) == 0) return {};
  return std::filesystem::path(info.dli_fname).parent_path();
}

// A driver answers with the number of its devices; the plug-in's libraries are large, so they are
// loaded only after that.
std::string missing_driver() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return "no NVIDIA driver (libcuda.so.1) on this machine";
  auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  auto count = reinterpret_cast<int (*)(int*)>(dlsym(driver, "cuDeviceGetCount"));
  int devices = 0;
  if (init == nullptr || count == nullptr || init(0) != 0 || count(&devices) != 0 || devices == 0) {
    return "the NVIDIA driver reports no usable device";
  }
  return {};
}

Opened open() {
  Opened out{.plugin = {}, .problem = missing_driver(), .no_code = {}, .library = nullptr};
  if (!out.problem.empty()) return out;
  const std::string list = gpu_architectures();
  if (!list.empty()) out.no_code = out.problem = why_no_code(list, gpus_here(), driver_rules());
  if (!out.problem.empty()) return out;
  const std::string path = folder_of_this_library() / "libtroupe_cuda.so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    const char* why = dlerror();
    out.problem = path + " cannot be opened: " + (why != nullptr ? why : "unknown");
    return out;
  }
  auto fill = reinterpret_cast<void (*)(CudaPlugin*)>(dlsym(library, "troupe_fill_cuda_plugin"));
  if (fill == nullptr) {
    out.problem = path + " is of another version: it lacks troupe_fill_cuda_plugin";
    return out;
  }
  fill(&out.plugin);
  out.library = library;
  return out;
}

const Opened& opened() {
  static const Opened once = open();  // A shared library can be opened once a process at most.
  return once;
}

}  // namespace

bool has_cuda() {
  return opened().problem.empty();
}

std::string why_no_cuda() {
  return opened().problem;
}

std::string why_no_gpu_code() {
  return opened().no_code;
}

DriverRules driver_rules() {
  return {.ptx_only = is_set("CUDA_FORCE_PTX_JIT"), .no_ptx = is_set("CUDA_DISABLE_PTX_JIT")};
}

std::vector<GpuFound> gpus_here() {
  std::vector<GpuFound> out;
  for (int i = 0; i < cuda_device_count(); ++i) {
    out.push_back({i, cuda_device_name(i), cuda_device_capability(i)});
  }
  return out;
}

std::string why_no_code_on(int device) {
  return why_not_on(gpu_architectures(),
                    {device, cuda_device_name(device), cuda_device_capability(device)},
                    cuda_plugin().runs_build_code(device), driver_rules());
}

const CudaPlugin& cuda_plugin_on(int device) {
  const CudaPlugin& plugin = cuda_plugin();
  if (!plugin.runs_build_code(device)) {
    fail(Code::kNoDevice, "a CUDA tensor", "is on a GPU without code:", why_no_code_on(device));
  }
  return plugin;
}

GpuKind gpu_kind(int device) {
  const CudaPlugin& plugin = cuda_plugin();
  return {.capability = plugin.compute_capability(device),
          .sm90_code = plugin.runs_sm90_code(device)};
}

const CudaPlugin& cuda_plugin() {
  if (!why_no_gpu_code().empty()) {
    fail(Code::kNoDevice, "a CUDA tensor", "was given, but", why_no_gpu_code());
  }
  TROUPE_CHECK(has_cuda(), "a CUDA tensor was given, but", opened().problem);
  return opened().plugin;
}

void* cuda_plugin_symbol(const char* name) {
  TROUPE_CHECK(has_cuda(), "-", name, "is asked for, but", opened().problem);
  void* const symbol = dlsym(opened().library, name);
  TROUPE_CHECK(symbol != nullptr, "libtroupe_cuda.so is of another version: it lacks", name);
  return symbol;
}

}  // namespace troupe
