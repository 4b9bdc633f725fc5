// Threads that work on tasks as they come; the results are taken in the order of the tasks. Where
// the system refuses threads there are fewer, or none, and then take() works.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace troupe {

template <class Result>
class OrderedWorkers {
 public:
  explicit OrderedWorkers(int threads) {
    threads_.reserve(static_cast<size_t>(threads));  // what follows throws nothing else
    try {
      for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      return;
    }
  }
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;
  ~OrderedWorkers() {  // tasks that nobody began are dropped
    {
      const std::lock_guard lock(mutex_);
      tasks_.clear();
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void add(std::function<Result()> task) {
    std::packaged_task<Result()> packaged(std::move(task));
    results_.push_back(packaged.get_future());
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back(std::move(packaged));
    }
    changed_.notify_one();
  }
  int threads() const { return static_cast<int>(threads_.size()); }
  size_t pending() const { return results_.size(); }  // added and not taken
  // The result of the oldest task, or what it threw.
  Result take() {
    if (threads_.empty()) {
      tasks_.front()();
      tasks_.pop_front();
    }
    std::future<Result> first = std::move(results_.front());
    results_.pop_front();
    return first.get();
  }

 private:
  void work() {
    while (true) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
      if (stop_) return;
      std::packaged_task<Result()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<Result()>> tasks_;
  std::deque<std::future<Result>> results_;
  bool stop_ = false;
  std::vector<std::thread> threads_;  // last: they use all of the above
};

}  // namespace troupe
