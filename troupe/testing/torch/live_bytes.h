// For tests of memory: what lives of the CPU's tensors that this thread makes and lets go of.
//
//   const auto bytes = std::make_shared<LiveBytes>();
//   const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>

namespace troupe::testing {

class LiveBytes : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    live += size;
    peak = std::max(peak, live);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t live = 0, peak = 0;  // since it was made: live may be below 0
};

}  // namespace troupe::testing
