// A futex word of shared memory wakes threads of any process that maps it.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <ctime>

#include "troupe/kernels/peer_flags/peer_flags.h"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kLooks = 64;  // before a thread sleeps: ranks may be more than the cores
// `stop` wakes nobody: it is looked at this often.
constexpr int64_t kNap = 20'000'000;

uint32_t seen(const uint32_t* flag) {
  return std::atomic_ref(*const_cast<uint32_t*>(flag)).load(std::memory_order_acquire);
}

bool reached(uint32_t flag, uint32_t want) {
  return static_cast<int32_t>(flag - want) >= 0;
}

// While the flag is `value`, and `ns` at most; may return early.
void sleep_on(const uint32_t* flag, uint32_t value, int64_t ns) {
  const timespec time{.tv_sec = ns / 1'000'000'000, .tv_nsec = ns % 1'000'000'000};
  ::syscall(SYS_futex, flag, FUTEX_WAIT, value, &time, nullptr, 0);
}

bool await_one(const uint32_t* flag, uint32_t want, const AwaitFlags& a, Clock::time_point end) {
  for (int i = 0; i < kLooks; ++i) {
    if (reached(seen(flag), want)) return true;
  }
  while (true) {
    const uint32_t value = seen(flag);
    if (reached(value, want)) return true;
    if (a.stop != nullptr && seen(a.stop) != 0) return false;
    const int64_t left =
        std::chrono::duration_cast<std::chrono::nanoseconds>(end - Clock::now()).count();
    if (left <= 0) return false;
    sleep_on(flag, value, std::min(left, kNap));
  }
}

}  // namespace

void signal_flags_cpu(const SignalFlags& a, const Pool& /*pool*/) {
  validate(a);
  const uint32_t value = a.value_at != nullptr ? *a.value_at : a.value;
  for (int64_t i = 0; i < a.count; ++i) {
    uint32_t* const flag = a.flags[static_cast<size_t>(i)];
    if (a.marked) std::atomic_ref(flag[1]).store(a.mark, std::memory_order_relaxed);
    std::atomic_ref(*flag).store(value, std::memory_order_release);
    ::syscall(SYS_futex, flag, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
}

void await_flags_cpu(const AwaitFlags& a, const Pool& /*pool*/) {
  validate(a);
  const bool lost = *a.missing >= 0;
  const Clock::time_point end = Clock::now() + std::chrono::nanoseconds(lost ? 0 : a.limit_ns);
  const uint32_t want = a.want_at != nullptr ? *a.want_at : a.want;
  const auto give_up = [&](int64_t missing) {
    if (!lost) *a.missing = static_cast<int32_t>(missing);
  };
  for (int64_t i = 0; i < a.count; ++i) {
    if (!await_one(a.flags[static_cast<size_t>(i)], want, a, end)) return give_up(i);
  }
  for (int64_t i = 0; a.marked && i < a.count; ++i) {
    if (seen(a.flags[static_cast<size_t>(i)] + 1) != a.mark) return give_up(kMostPeers + i);
  }
  if (a.advance != nullptr) *a.advance = want + 1;
}

}  // namespace troupe
