#include "bench/control_plane/resources.h"

#include <dirent.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

namespace troupe::control_plane {
namespace {

constexpr size_t kStack = size_t{512} << 10;
constexpr int64_t kKibi = 1024;
constexpr std::chrono::milliseconds kToEnd{5'000}, kPause{20};

// The number behind a word of a file of /proc; 0: there is none.
int64_t number_behind(const std::string& file, const std::string& word) {
  std::ifstream in(file);
  for (std::string read; in >> read;) {
    int64_t number = 0;
    if (read == word && in >> number) return number;
  }
  return 0;
}

std::string status_of(pid_t process) {
  return "/proc/" + std::to_string(process) + "/status";
}

bool has_child() {
  siginfo_t info = {};
  return ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0;
}

}  // namespace

int64_t raise_descriptors() {
  struct rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
  ::getrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int64_t>(limit.rlim_cur);
}

int64_t open_descriptors() {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  if (!folder) return 0;
  int64_t out = -3;  // ".", ".." and the folder's own
  while (::readdir(folder.get()) != nullptr) ++out;
  return out;
}

std::string left_behind(int64_t before) {
  using std::chrono::steady_clock;
  const auto end = steady_clock::now() + kToEnd;
  int64_t more = 0;
  bool child = false;
  const auto is_left = [&] {
    more = open_descriptors() - before;
    child = has_child();
    return more > 0 || child;
  };
  while (is_left() && steady_clock::now() < end) std::this_thread::sleep_for(kPause);
  std::string out;
  if (more > 0) out = std::to_string(more) + " open descriptors";
  if (child) out += (out.empty() ? "" : " and ") + std::string("a process");
  return out;
}

void set_small_stacks() {
  pthread_attr_t how;
  if (::pthread_attr_init(&how) != 0) return;
  ::pthread_attr_setstacksize(&how, kStack);
  ::pthread_setattr_default_np(&how);
  ::pthread_attr_destroy(&how);
}

int64_t memory_now(pid_t process) {
  return kKibi * number_behind(status_of(process), "VmRSS:");
}

int64_t memory_peak(pid_t process) {
  return kKibi * number_behind(status_of(process), "VmHWM:");
}

void reset_peak(pid_t process) {
  std::ofstream("/proc/" + std::to_string(process) + "/clear_refs") << "5";
}

int64_t memory_available() {
  return kKibi * number_behind("/proc/meminfo", "MemAvailable:");
}

int64_t file_bytes_read() {
  return number_behind("/proc/self/io", "rchar:");
}

}  // namespace troupe::control_plane
