#include "troupe/train/loop/signals.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

#include "troupe/core/file/file.h"

namespace troupe {
namespace {

sigset_t waited() {
  sigset_t out;
  sigemptyset(&out);
  for (const int s : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGXCPU}) sigaddset(&out, s);
  return out;
}

}  // namespace

void hold_signals() {
  const sigset_t set = waited();
  for (const int s : {SIGHUP, SIGPIPE, SIGXFSZ}) ::signal(s, SIG_IGN);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

Signals::Signals() {
  hold_signals();
  const sigset_t set = waited();
  signals_ = ::signalfd(-1, &set, SFD_CLOEXEC);
  end_ = ::eventfd(0, EFD_CLOEXEC);
  if (signals_ < 0 || end_ < 0) fail_file(Code::kFileFailed, "signals", "open", errno);
  thread_ = std::thread([this] { wait(); });
}

Signals::~Signals() {
  const uint64_t one = 1;
  if (::write(end_, &one, sizeof(one)) == sizeof(one)) thread_.join();
  ::close(signals_);
  ::close(end_);
}

void Signals::on_status(std::function<void()> f) {
  const std::lock_guard lock(mutex_);
  on_status_ = std::move(f);
}

void Signals::wait() {
  std::array<pollfd, 2> ready = {pollfd{signals_, POLLIN, 0}, pollfd{end_, POLLIN, 0}};
  while (::poll(ready.data(), ready.size(), -1) >= 0 || errno == EINTR) {
    if (ready[1].revents != 0) return;
    signalfd_siginfo info{};
    if (ready[0].revents == 0 || ::read(signals_, &info, sizeof(info)) != sizeof(info)) continue;
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGUSR1) save_ = true;
    if (number == SIGUSR2) {
      status_ = true;
      const std::lock_guard lock(mutex_);
      if (on_status_) on_status_();
    }
    // The kernel sends it each second from the soft limit on: it stops the run, and never leaves at
    // once.
    if (int none = 0; number == SIGXCPU) stop_.compare_exchange_strong(none, number);
    if (number != SIGTERM && number != SIGINT) continue;
    // What is published stays whole at any instant, so that leaving here loses no checkpoint.
    if (stop_.exchange(number) != 0) std::_Exit(128 + number);
  }
}

}  // namespace troupe
