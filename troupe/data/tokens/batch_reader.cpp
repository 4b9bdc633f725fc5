#include "troupe/data/tokens/batch_reader.h"

#include <chrono>
#include <utility>

#include "troupe/core/check.h"

namespace troupe {

BatchReader::BatchReader(std::function<TokenBatch(int64_t)> make, int64_t first, int64_t ahead)
    : make_(std::move(make)), ahead_(static_cast<size_t>(ahead)) {
  TROUPE_CHECK(ahead >= 1, ahead);
  thread_ = std::thread([this, first] { run(first); });
}

BatchReader::~BatchReader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BatchReader::run(int64_t n) {
  for (;; ++n) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return stop_ || ready_.size() < ahead_; });
      if (stop_) return;
    }
    try {
      TokenBatch batch = make_(n);
      const std::lock_guard lock(mutex_);
      ready_.push_back(std::move(batch));
    } catch (...) {
      const std::lock_guard lock(mutex_);
      fault_ = std::current_exception();
    }
    changed_.notify_all();
    if (fault_) return;  // Only this thread writes it.
  }
}

TokenBatch BatchReader::next() {
  const auto begin = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ready_.empty() || fault_; });
  wait_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (ready_.empty()) std::rethrow_exception(fault_);
  TokenBatch batch = std::move(ready_.front());
  ready_.pop_front();
  lock.unlock();
  changed_.notify_all();
  return batch;
}

const TokenBatch* BatchReader::peek() {
  const std::lock_guard lock(mutex_);
  return ready_.empty() ? nullptr : &ready_.front();
}

}  // namespace troupe
