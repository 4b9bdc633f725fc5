#include "troupe/ops/support/tasks.h"

#include <ATen/Parallel.h>

#include <atomic>

namespace troupe {

int64_t task_workers() {
  return at::in_parallel_region() ? 1 : at::get_num_threads();
}

void run_tasks(int64_t n, const std::function<void(int64_t, int64_t)>& task) {
  std::atomic<int64_t> next = 0;
  at::parallel_for(0, task_workers(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t worker = begin; worker < end; ++worker) {
      for (int64_t i = next++; i < n; i = next++) task(i, worker);
    }
  });
}

}  // namespace troupe
