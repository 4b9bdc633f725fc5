// A Pool over threads of its own, for work on text and for waiting. Computation beside a model
// takes that one's (ops/support/run.h), so that a process has one set of workers.
#pragma once

#include <algorithm>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "troupe/core/device/pool.h"

namespace troupe {

// 0 threads: one for each core. A range whose thread the system refuses is computed here. What a range throws is thrown to the caller, the first of several.
inline Pool thread_pool(int threads) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const int64_t wanted = threads > 0 ? threads : cores;
  return [wanted](int64_t n, int64_t grain, const Range& range) {
    const int64_t ranges = std::clamp<int64_t>(n / std::max<int64_t>(1, grain), 1, wanted);
    if (ranges == 1) return serial(n, grain, range);
    std::mutex mutex;
    std::exception_ptr thrown;
    const auto work = [&](int64_t begin, int64_t end) {
      try {
        range(begin, end);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!thrown) thrown = std::current_exception();
      }
    };
    {
      std::vector<std::jthread> workers;
      workers.reserve(static_cast<size_t>(ranges));
      for (int64_t t = 0; t < ranges; ++t) {
        const int64_t begin = n * t / ranges, end = n * (t + 1) / ranges;
        try {
          workers.emplace_back(work, begin, end);
        } catch (const std::system_error&) {
          work(begin, end);
        }
      }
    }
    if (thrown) std::rethrow_exception(thrown);
  };
}

}  // namespace troupe
