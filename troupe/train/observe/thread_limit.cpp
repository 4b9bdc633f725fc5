#include "troupe/train/observe/thread_limit.h"

#include <cerrno>
#include <latch>
#include <system_error>
#include <thread>
#include <vector>

#include "troupe/core/device/limits.h"

namespace troupe {

std::optional<Error> refused_thread(const std::exception& error) {
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  if (system == nullptr || system->code() != std::errc::resource_unavailable_try_again) return {};
  return Error("threads: " + to_text(Code::kFileFailed) +
                   " the system starts no more of them: raise the limit (ulimit -u, or pids.max of "
                   "the control group), or set run.threads or OMP_NUM_THREADS to fewer" +
                   limits_behind(EAGAIN),
               Code::kFileFailed);
}

void require_threads(int count) {
  std::latch end(1);
  std::vector<std::jthread> threads;
  try {
    for (int i = 1; i < count; ++i) {
      threads.emplace_back([&end] { end.wait(); });
    }
  } catch (const std::system_error& error) {
    end.count_down();
    if (const auto refused = refused_thread(error)) throw *refused;
    throw;
  }
  end.count_down();
}

}  // namespace troupe
