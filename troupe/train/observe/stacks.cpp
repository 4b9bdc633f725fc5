#include "troupe/train/observe/stacks.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <mutex>
#include <sstream>
#include <thread>

namespace troupe {
namespace {

// What a thread leaves for the one that asks. It is forever: an answer may come too late.
struct Answer {
  std::array<void*, 64> frames = {};
  std::atomic<int> count = 0;
};

Answer& answer() {
  static Answer out;  // the handler of a signal has no arguments of ours
  return out;
}

void give_answer(int) {
  const int before = errno;
  Answer& out = answer();
  out.count = ::backtrace(out.frames.data(), static_cast<int>(out.frames.size()));
  errno = before;
}

std::string name_of(void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || info.dli_fname == nullptr) return "?";
  if (info.dli_sname == nullptr) {
    std::ostringstream out;
    out << std::filesystem::path(info.dli_fname).filename().string() << "+0x" << std::hex
        << static_cast<char*>(address) - static_cast<char*>(info.dli_fbase);
    return out.str();
  }
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> plain(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), &std::free);
  const std::string name = status == 0 ? plain.get() : info.dli_sname;
  return name.substr(0, name.find('('));
}

// The frames of one thread; empty where it gives none in time.
std::string stack_of(int thread) {
  constexpr int kHandler = 2;  // the answering handler, and what called it
  Answer& out = answer();
  out.count = 0;
  if (::syscall(SYS_tgkill, ::getpid(), thread, SIGRTMAX - 2) != 0) return {};
  for (int waited = 0; out.count == 0 && waited < 200; ++waited) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::string text;
  for (int i = kHandler; i < out.count; ++i) {
    text += (text.empty() ? "" : " < ") + name_of(out.frames[static_cast<size_t>(i)]);
  }
  return text;
}

}  // namespace

std::string stacks_of_all_threads() {
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  std::array<void*, 1> warm = {};
  ::backtrace(warm.data(), 1);  // the first one loads a library, which no handler may
  struct sigaction action = {}, before = {};
  action.sa_handler = give_answer;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGRTMAX - 2, &action, &before);
  std::string text;
  std::error_code none;
  for (std::filesystem::directory_iterator it("/proc/self/task", none), end; !none && it != end;
       it.increment(none)) {
    const std::string thread = it->path().filename().string();
    std::string comm;
    std::getline(std::ifstream(it->path() / "comm"), comm);
    const std::string stack = stack_of(std::atoi(thread.c_str()));
    if (!text.empty()) text += '\n';
    text.append("thread ").append(thread).append(" ").append(comm).append(": ");
    text += stack.empty() ? "gave no answer" : stack;
  }
  return text;
}

}  // namespace troupe
