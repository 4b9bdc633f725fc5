// Unequal tasks over PyTorch's CPU threads: whoever is free takes the next. Which thread runs a
// task is open, so a task's result must not depend on it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace troupe {

// Runs task(i, worker) for each i in [0, n) once; worker is in [0, task_workers()).
void run_tasks(int64_t n, const std::function<void(int64_t i, int64_t worker)>& task);
int64_t task_workers();

// One block of memory a worker, reused for all its tasks; uninitialized.
template <class T>
class WorkerScratch {
 public:
  explicit WorkerScratch(int64_t each) : each_(each), memory_(new T[task_workers() * each]) {}
  T* of(int64_t worker) { return memory_.get() + worker * each_; }

 private:
  int64_t each_;
  std::unique_ptr<T[]> memory_;
};

}  // namespace troupe
