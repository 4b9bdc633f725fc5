#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <set>
#include <span>
#include <sstream>
#include <thread>

#include "troupe/checkpoint/folder/run_folder.h"
#include "troupe/checkpoint/state/checkpoint.h"
#include "troupe/checkpoint/state/save_step.h"
#include "troupe/checkpoint/state/tensor_element.h"
#include "troupe/core/check.h"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMade = size_t{1} << 18;  // numbers at a time: a mebibyte, still in the cache

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void wait_for_device(const at::Tensor& of) {
  if (of.is_cpu()) return;
  const c10::impl::VirtualGuardImpl guard(of.device().type());
  guard.synchronizeStream(guard.getStream(of.device()));
}

// Host copies of what this rank writes. Kept between saves: fresh memory costs more than the copy.
class Snapshot {
 public:
  // Without `copy`, tensors on the CPU are written from where they are.
  std::vector<ShardPiece> take(const CheckpointState& state, bool copy) {
    std::vector<ShardPiece> out;
    size_t i = 0;
    std::set<c10::DeviceIndex> devices;
    at::Tensor last;
    const auto host = [&](const at::Tensor& source) {
      if (!copy && source.is_cpu()) return source;
      const at::Tensor& kept = buffer(i++, source);
      at::Tensor(kept).copy_(source, /*non_blocking=*/true);
      if (!source.is_cpu()) last = source;
      return kept;
    };
    for (const CheckpointState::Part& part : state.parts()) {
      if (!part.owned) continue;
      StateTensor live = static_cast<const StateTensor&>(part);
      for (at::Tensor* const x : {&live.value, &live.low, &live.scales}) {
        if (x->defined()) *x = host(*x);
      }
      out.push_back(part.in_place() ? ShardPiece{part.tensor, bytes_of(live.value)}
                                    : made(part.tensor, std::move(live)));
    }
    if (last.defined()) wait_for_device(last);
    return out;
  }

 private:
  // The f32 numbers are made as they are written: no memory for all of them.
  static ShardPiece made(const TensorBox& tensor, StateTensor live) {
    ShardPiece out{tensor};
    out.make = [live = std::move(live)](const WriteBytes& write) {
      const auto n = static_cast<size_t>(live.value.numel());
      std::vector<float> piece(std::min(n, kMade));
      for (size_t at = 0; at < n; at += kMade) {
        const std::span<float> numbers(piece.data(), std::min(kMade, n - at));
        live.numbers(static_cast<int64_t>(at), numbers);
        write(std::as_bytes(numbers));
      }
    };
    return out;
  }

  const at::Tensor& buffer(size_t i, const at::Tensor& like) {
    if (i >= buffers_.size()) buffers_.resize(i + 1);
    at::Tensor& out = buffers_[i];
    if (!out.defined() || out.numel() != like.numel() || out.scalar_type() != like.scalar_type()) {
      const bool pinned = like.is_cuda();  // or the copy would not overlap with another
      out = at::empty({like.numel()}, at::TensorOptions(like.scalar_type()).pinned_memory(pinned));
    }
    return out;
  }

  std::vector<at::Tensor> buffers_;
};

}  // namespace

class Saver::Impl {
 public:
  Impl(CheckpointConfig config, std::string run_id, CheckpointGroup group, Log log, Fs& fs,
       const Faults& faults)
      : config_(std::move(config)),
        run_id_(std::move(run_id)),
        group_(std::move(group)),
        log_(std::move(log)),
        fs_(fs),
        faults_(faults) {
    validate(config_);
    run_on_all(group_, [&] {
      if (group_.rank == 0) take_folder();
      return std::string();
    });
  }

  ~Impl() {
    join();
    if (error_ && !reported_) {
      try {
        std::rethrow_exception(error_);
      } catch (const std::exception& e) {
        log_.error(std::string("the last checkpoint was not written: ") + e.what());
      }
    }
  }

  void go_on_from(int64_t step) {
    run_on_all(group_, [&] {
      if (group_.rank != 0) return std::string();
      for (const std::string& line : set_aside_later(fs_, config_.dir, step)) log_.warning(line);
      return std::string();
    });
  }

  void save(const CheckpointState& state, const SaveInfo& info) {
    rethrow();
    const auto start = Clock::now();
    if (busy()) {
      log_.info("the save of step " + std::to_string(info.step) +
                " waits: the one before is still being written");
    }
    join();
    rethrow();
    faults_.at("save.stage", info.step);
    Task task{info, snapshot_.take(state, config_.background)};
    abandon_ = false;
    running_ = true;
    const double stall = info.stalled + since(start);
    if (config_.background) {
      thread_ = std::jthread([this, stall, t = std::move(task)]() mutable { work(t, stall); });
    } else {
      work(task, stall);
      rethrow();
    }
  }

  bool busy() const { return running_; }

  void keep_folder() {
    if (lock_ == nullptr || lock_->is_in_place()) return;
    log_.warning(config_.dir + ": the folder's lock was deleted; it is made anew");
    prepare_run_folder(fs_, config_.dir);
    lock_ = std::make_unique<RunLock>(config_.dir);
  }

  bool failed() const {
    const std::lock_guard lock(mutex_);
    return error_ && !reported_ && !passes();
  }

  std::vector<SaveResult> take_results() {
    const std::lock_guard lock(mutex_);
    return std::exchange(results_, {});
  }

  void wait() {
    join();
    const std::lock_guard lock(mutex_);
    if (error_) {
      reported_ = true;
      std::rethrow_exception(std::exchange(error_, nullptr));
    }
  }

  void abandon() { abandon_ = true; }

 private:
  struct Task {
    SaveInfo info;
    std::vector<ShardPiece> pieces;
  };

  void take_folder() {
    prepare_run_folder(fs_, config_.dir);
    lock_ = std::make_unique<RunLock>(config_.dir);
    if (!lock_->taken_over().empty()) log_.warning(lock_->taken_over());
    const int64_t removed = remove_staging(fs_, config_.dir);
    if (removed > 0) {
      log_.info("removed " + std::to_string(removed) + " leftovers of a save that was killed");
    }
  }

  // On the background thread, or in save() itself, where all of it is a stall besides.
  void work(const Task& task, double stall) {
    const auto start = Clock::now();
    SaveResult result{.step = task.info.step};
    std::exception_ptr error;
    try {
      write(task, result);
    } catch (...) {
      error = std::current_exception();
    }
    result.write_seconds = since(start);
    result.stall_seconds = stall + (config_.background ? 0 : result.write_seconds);
    report(result, error);
    const std::lock_guard lock(mutex_);
    error_ = error, reported_ = false;
    if (!error) results_.push_back(result);
    running_ = false;
  }

  void write(const Task& task, SaveResult& result) {
    while (true) {
      try {
        return save_step({fs_, faults_, group_, log_, &abandon_}, config_, run_id_, task.info,
                         task.pieces, result);
      } catch (const Error& e) {
        if (config_.on_error != OnError::kPause || e.exit_class() != ExitClass::kResource) throw;
        log_.warning(std::string(e.what()) + "; the save is tried again in " +
                     to_text(config_.pause));
        for (Duration slept; slept < config_.pause; slept.ns += milliseconds(50).ns) {
          if (abandon_) throw;
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
      }
    }
  }

  void report(const SaveResult& result, const std::exception_ptr& error) {
    const std::string head = "step " + std::to_string(result.step);
    if (error && config_.on_error == OnError::kRetry) {
      try {
        std::rethrow_exception(error);
      } catch (const std::exception& e) {
        log_.warning(head + " is not saved, the next interval tries again: " + e.what());
      }
    } else if (!error && !result.skipped.empty()) {
      log_.info(head + " is not saved: " + result.skipped);
    } else if (!error) {
      std::ostringstream line;
      line << "saved " << head << ": " << result.bytes << " bytes in " << result.write_seconds
           << " s, training waited " << result.stall_seconds << " s";
      if (result.bad) line << "; it holds NaN or infinite numbers and is tagged bad";
      // The reader of take_results() logs a sound one, once.
      result.bad ? log_.warning(line.str()) : log_.debug(line.str());
    }
  }

  void join() {
    if (thread_.joinable()) thread_.join();
  }

  // Under `stop`, and for what is no fault of the disk.
  void rethrow() {
    const std::lock_guard lock(mutex_);
    if (!error_ || reported_ || passes()) return;
    reported_ = true;
    std::rethrow_exception(error_);
  }

  // With the lock: the error was a warning, and that is all.
  bool passes() const {
    try {
      std::rethrow_exception(error_);
    } catch (const Error& e) {
      return config_.on_error == OnError::kRetry && e.exit_class() == ExitClass::kResource;
    } catch (...) {
      return false;
    }
  }

  const CheckpointConfig config_;
  const std::string run_id_;
  const CheckpointGroup group_;
  const Log log_;
  Fs& fs_;
  const Faults& faults_;
  std::unique_ptr<RunLock> lock_;
  Snapshot snapshot_;
  std::atomic<bool> abandon_ = false, running_ = false;
  mutable std::mutex mutex_;
  std::exception_ptr error_;  // of the last save
  bool reported_ = false;
  std::vector<SaveResult> results_;
  std::jthread thread_;
};

Saver::Saver(CheckpointConfig config, std::string run_id, CheckpointGroup group, Log log, Fs& fs,
             const Faults& faults)
    : impl_(std::make_unique<Impl>(std::move(config), std::move(run_id), std::move(group),
                                   std::move(log), fs, faults)) {}
Saver::~Saver() = default;

void Saver::go_on_from(int64_t step) {
  impl_->go_on_from(step);
}
void Saver::keep_folder() {
  impl_->keep_folder();
}
void Saver::save(const CheckpointState& state, const SaveInfo& info) {
  impl_->save(state, info);
}
bool Saver::busy() const {
  return impl_->busy();
}
bool Saver::failed() const {
  return impl_->failed();
}
std::vector<SaveResult> Saver::take_results() {
  return impl_->take_results();
}
void Saver::wait() {
  impl_->wait();
}
void Saver::abandon() {
  impl_->abandon();
}

}  // namespace troupe
