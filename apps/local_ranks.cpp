#include "apps/local_ranks.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "troupe/core/check.h"
#include "troupe/core/device/limits.h"
#include "troupe/core/file/file.h"
#include "troupe/distributed/status/process.h"

namespace troupe {
namespace {

using std::chrono::steady_clock;

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// This process's environment, with `more` in the place of what has the same names.
std::vector<std::string> environment_with(const Variables& more) {
  std::vector<std::string> out;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string text = *entry, name = text.substr(0, text.find('='));
    if (std::ranges::find(more, name, &Variables::value_type::first) == more.end()) {
      out.push_back(text);
    }
  }
  for (const auto& [name, value] : more) out.push_back(name + '=' + value);
  return out;
}

// Only what may be called between fork and exec in a process with threads: no memory is taken.
[[noreturn]] void become(char* const* words, char* const* environment, pid_t parent, int kept) {
  ::setpgid(0, 0);
  if (kept >= 0) ::fcntl(kept, F_SETFD, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it was gone before the line above
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve("/proc/self/exe", words, environment);
  ::_exit(127);
}

}  // namespace

pid_t start_process(std::vector<std::string> words, const Variables& variables, int kept) {
  words.insert(words.begin(), "troupe");
  std::vector<std::string> environment = environment_with(variables);
  const std::vector<char*> argv = pointers(words), envp = pointers(environment);
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid == 0) become(argv.data(), envp.data(), parent, kept);
  if (pid < 0) {
    const int error = errno;
    fail(Code::kFileFailed, "fork",
         std::string("the system starts no more processes: ") + std::strerror(error) +
             ". Ask for fewer ranks, or raise the limit (ulimit -u, or pids.max of the control "
             "group)" +
             limits_behind(error));
  }
  return pid;
}

bool is_stopped(pid_t pid) {
  const char state = state_of(pid);
  return state == 'T' || state == 't';
}

Waiter::Waiter() {
  for (const int s : {SIGHUP, SIGPIPE}) ::signal(s, SIG_IGN);
  sigset_t set;
  ::sigemptyset(&set);
  for (const int s : {SIGTERM, SIGINT, SIGUSR1, SIGUSR2, SIGCHLD}) ::sigaddset(&set, s);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signals_ = ::signalfd(-1, &set, SFD_CLOEXEC);
  if (signals_ < 0) fail_file(Code::kFileFailed, "signals", "open a descriptor for them", errno);
}

Waiter::~Waiter() {
  ::close(signals_);
}

int Waiter::wait(std::optional<SteadyTime> until) {
  while (true) {
    int left = -1;
    if (until) {
      const auto rest =
          std::chrono::ceil<std::chrono::milliseconds>(*until - steady_clock::now()).count();
      left = static_cast<int>(std::max<int64_t>(rest, 0));
    }
    pollfd ready{signals_, POLLIN, 0};
    const int n = ::poll(&ready, 1, left);
    if (n == 0) return 0;
    signalfd_siginfo info{};
    if (n > 0 && ::read(signals_, &info, sizeof(info)) == sizeof(info)) {
      return static_cast<int>(info.ssi_signo);
    }
    TROUPE_CHECK(errno == EINTR, "waiting for signals:", std::strerror(errno));
  }
}

void require_open_files(int count) {
  std::vector<int> opened;
  int error = 0;
  while (std::ssize(opened) < count && error == 0) {
    const int fd = ::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
    fd < 0 ? void(error = errno) : opened.push_back(fd);
  }
  for (const int fd : opened) ::close(fd);
  if (error != 0) fail_file(Code::kFileFailed, "connections of the ranks", "open sockets", error);
}

LocalRanks::LocalRanks(const std::vector<std::string>& words,
                       const std::vector<Variables>& environments,
                       const std::vector<pid_t>& started) {
  for (const pid_t pid : started) {
    children_.push_back({.pid = pid});
    running_ += pid > 0 ? 1 : 0;
  }
  children_.resize(environments.size());
  try {
    for (size_t rank = 0; rank < environments.size(); ++rank) {
      if (children_[rank].pid > 0) continue;
      children_[rank].pid = start_process(words, environments[rank]);
      ++running_;
    }
  } catch (const Error&) {
    force(SIGKILL);  // no destructor comes: those already started must not stay
    throw;
  }
}

LocalRanks::~LocalRanks() {
  force(SIGKILL);
  for (const Child& child : children_) {
    if (child.pid > 0) ::waitpid(child.pid, nullptr, 0);
  }
}

bool LocalRanks::stands_still(int rank) const {
  return is_stopped(children_[static_cast<size_t>(rank)].pid);
}

bool LocalRanks::all_stand_still() const {
  return std::ranges::all_of(
      children_, [](const Child& child) { return child.pid <= 0 || is_stopped(child.pid); });
}

void LocalRanks::send(int signal) const {
  for (const Child& child : children_) {
    if (child.pid > 0) ::kill(child.pid, signal);
  }
}

void LocalRanks::force(int signal, const std::function<bool(int rank)>& which) {
  for (size_t i = 0; i < children_.size(); ++i) {
    Child& child = children_[i];
    if (child.pid <= 0 || (which && !which(static_cast<int>(i)))) continue;
    child.forced = true;
    child.stood_still |= is_stopped(child.pid);
    ::kill(child.pid, signal);
  }
}

std::vector<RankEnd> LocalRanks::reap() {
  std::vector<RankEnd> out;
  for (size_t i = 0; i < children_.size(); ++i) {
    Child& child = children_[i];
    int status = 0;
    if (child.pid <= 0 || ::waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
    const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    out.push_back({.rank = static_cast<int>(i),
                   .code = signal != 0 ? static_cast<int>(ExitClass::kPeer) : WEXITSTATUS(status),
                   .signal = signal,
                   .forced = child.forced,
                   .stood_still = child.stood_still,
                   .when = steady_clock::now()});
    child.pid = -1;
    --running_;
  }
  return out;
}

}  // namespace troupe
