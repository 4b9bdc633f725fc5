// Signals as flags that the loop reads between steps. A thread waits for them, so that no code of
// ours runs inside a signal handler, and a process with number 1 gets them too.
//   SIGTERM, SIGINT   once: stop after this step, with a checkpoint. Twice: leave at once, 128 + n
//   SIGUSR1           save a checkpoint now
//   SIGUSR2           say where the run is, and each of its threads
//   SIGXCPU           the soft limit of processor time (ulimit -S -t): as one SIGTERM, also each
//                     second again
//   SIGHUP, SIGPIPE, SIGXFSZ are ignored: a closed terminal or pipe does not end a run, and a write
//                     beyond the limit on file sizes (ulimit -f) fails with EFBIG
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "troupe/core/stop.h"

namespace troupe {

// Ignores the signals above that are ignored, and keeps the others back until there is a Signals,
// which then takes those that came before it. Call it first in main, in its only thread.
void hold_signals();

class Signals {
 public:
  // Calls hold_signals; make it before any other thread is started.
  Signals();
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;
  ~Signals();

  int stop() const { return stop_; }  // the signal, or 0
  StopQuestion question() const {
    return [this] { return stop_ != 0; };
  }
  bool take_save() { return save_.exchange(false); }
  bool take_status() { return status_.exchange(false); }
  // Besides, at once and in the waiting thread: the loop itself may hang. {}: nothing.
  void on_status(std::function<void()> f);

 private:
  void wait();

  std::atomic<int> stop_ = 0;
  std::atomic<bool> save_ = false, status_ = false;
  std::mutex mutex_;
  std::function<void()> on_status_;
  int signals_ = -1, end_ = -1;  // a signalfd and an eventfd
  std::thread thread_;
};

}  // namespace troupe
