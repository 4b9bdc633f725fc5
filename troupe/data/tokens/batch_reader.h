// A thread that makes the next batches while the present one is used.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "troupe/data/tokens/dataset.h"

namespace troupe {

class BatchReader {
 public:
  // `make(n)` makes batch n; it is called with first, first + 1, ... by the thread alone, at most
  // `ahead` (1 or more) batches before next() takes them.
  BatchReader(std::function<TokenBatch(int64_t n)> make, int64_t first, int64_t ahead);
  BatchReader(const BatchReader&) = delete;
  BatchReader& operator=(const BatchReader&) = delete;
  ~BatchReader();  // waits for the batch that is being made

  // The next batch in order. What make(n) threw is thrown here instead of batch n, and again by
  // every later call.
  TokenBatch next();
  // The batch that next() returns at once; null: it is not ready, or its making failed. Stays until
  // next() is called.
  const TokenBatch* peek();
  double wait_seconds() const { return wait_seconds_; }  // how long next() waited, in all

 private:
  void run(int64_t n);

  std::function<TokenBatch(int64_t)> make_;
  const size_t ahead_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<TokenBatch> ready_;
  std::exception_ptr fault_;
  bool stop_ = false;
  double wait_seconds_ = 0;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace troupe
