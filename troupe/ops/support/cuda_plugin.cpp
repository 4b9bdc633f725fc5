#include "troupe/ops/support/cuda_plugin.h"

#include <dlfcn.h>

#include <filesystem>

#include "troupe/core/check.h"

namespace troupe {
namespace {

struct Opened {
  CudaPlugin plugin;
  std::string problem;
  void* library = nullptr;
};

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
  Opened out{.plugin = {}, .problem = missing_driver(), .library = nullptr};
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

const CudaPlugin& cuda_plugin() {
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
