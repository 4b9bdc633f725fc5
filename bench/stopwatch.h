// What benches of several ranks share: where a rank computes, and seconds of what all do at once.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>

#include "troupe/distributed/world/world.h"
#include "troupe/ops/support/cuda_plugin.h"
#include "troupe/ops/support/wait_for_device.h"

namespace troupe {

// A GPU for each rank of a machine; where there is none, the CPU.
inline c10::Device device_here(const LauncherEnvironment& place) {
  if (!has_cuda()) return {c10::kCPU};
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(place.local_rank)};
}

class Stopwatch {
 public:
  explicit Stopwatch(World& world) : world_(world) {}

  // Seconds of the slowest rank, from a moment in which all are ready.
  template <class F>
  double seconds(F&& f) const {
    wait_for_device(world_.device());
    world_.processors()->barrier();
    const auto begin = std::chrono::steady_clock::now();
    f();
    wait_for_device(world_.device());
    const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
    double slowest = 0;
    for (const std::string& text :
         world_.all_gather_texts("time", std::to_string(passed.count()))) {
      slowest = std::max(slowest, std::stod(text));
    }
    return slowest;
  }

 private:
  World& world_;
};

}  // namespace troupe
