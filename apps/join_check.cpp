#include "apps/join_check.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <functional>
#include <string_view>
#include <thread>

#include "apps/torch_lines.h"
#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/core/device/limits.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/host_name.h"
#include "troupe/core/text/first_line.h"
#include "troupe/core/text/shell_word.h"
#include "troupe/distributed/world/link_check.h"
#include "troupe/train/machine/machine_check.h"

namespace troupe {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using Send = std::function<void(const std::string& line)>;

constexpr std::string_view kNext = "next  ";  // begins the line that names the next check
constexpr std::string_view kFail = "fail  ";  // as line_of() begins
constexpr milliseconds kReportTime{5'000}, kKillTime{2'000}, kPause{10};

milliseconds time_of(Duration duration) {
  return milliseconds(duration.ns / 1'000'000);
}

// A process that ends with this one.
pid_t fork_child() {
  const pid_t parent = ::getpid(), pid = ::fork();
  if (pid < 0) {
    const int error = errno;
    fail(Code::kFileFailed, "fork",
         std::string("the system starts no more processes: ") + std::strerror(error) +
             limits_behind(error));
  }
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);  // it was gone before the line above
  }
  return pid;
}

// Hands on each line until the other end is closed. False: it is not by then.
bool read_lines(int fd, steady_clock::time_point end, const Send& got) {
  std::string text;
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(end - steady_clock::now()).count();
    pollfd ready{fd, POLLIN, 0};
    const int n = left <= 0 ? 0 : ::poll(&ready, 1, static_cast<int>(left));
    if (n == 0) return false;
    std::array<char, 4096> part{};
    const ssize_t size = n < 0 ? -1 : ::read(fd, part.data(), part.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return true;
    text.append(part.data(), static_cast<size_t>(size));
    for (size_t line = text.find('\n'); line != std::string::npos; line = text.find('\n')) {
      got(text.substr(0, line));
      text.erase(0, line + 1);
    }
  }
}

// What it returned or which signal ended it, as waitpid says; a process that a disk or a driver
// holds takes no signal and is left behind.
int status_of(pid_t pid, bool late) {
  int status = 0;
  if (!late) return ::waitpid(pid, &status, 0) == pid ? status : 0;
  ::kill(pid, SIGKILL);
  const auto end = steady_clock::now() + kKillTime;
  while (::waitpid(pid, &status, WNOHANG) == 0 && steady_clock::now() < end) {
    std::this_thread::sleep_for(kPause);
  }
  return status;
}

struct ChildEnd {
  bool late = false;
  int status = 0;  // 0: all is well
};

// Runs `f` in a process of its own: it may hang, and what it takes of the devices is given back.
ChildEnd in_child(milliseconds most, const std::function<void(const Send& send)>& f,
                  const Send& got) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    fail_file(Code::kFileFailed, "pipe", "open", errno);
  }
  const pid_t pid = fork_child();
  if (pid == 0) {
    try {
      f([&](const std::string& line) {
        const std::string text = first_line(line) + '\n';
        if (::write(ends[1], text.data(), text.size()) < 0) ::_exit(1);
      });
    } catch (const std::exception&) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  ::close(ends[1]);
  const bool done = read_lines(ends[0], steady_clock::now() + most, got);
  ::close(ends[0]);
  return {.late = !done, .status = status_of(pid, !done)};
}

void set_address(const std::string& text, MachineToCheck& out) {
  const size_t colon = text.rfind(':');
  const std::string_view port =
      colon == std::string::npos ? std::string_view() : std::string_view(text).substr(colon + 1);
  out.host = text.substr(0, colon);
  if (out.host.starts_with('[') && out.host.ends_with(']')) {
    out.host = out.host.substr(1, out.host.size() - 2);
  }
  if (port.empty() || out.host.empty() || !from_text(port, out.port) || out.port < 1 ||
      out.port > 65535) {
    fail(Code::kBadValue, "--check-against", '"' + text + '"',
         "is not HOST:PORT, such as 10.1.0.1:29600");
  }
}

// Ctrl-C and SIGTERM are for the program that this process belongs to, with which it ends.
void serve_if_host(const MachineToCheck& machine, const Log& log) {
  const int socket = listen_for_checks(machine.host, machine.port);
  if (socket < 0) return;
  log.info("other machines are checked against this one, at port " + std::to_string(machine.port));
  if (fork_child() != 0) {
    ::close(socket);
    return;
  }
  for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) ::signal(s, SIG_IGN);
  const TorchLines lines(log);
  try {
    serve_checks(socket, machine.host,
                 [&log](const std::string& report) { log.warning("reported: " + report); });
  } catch (const std::exception& e) {
    log.error("no further machine is checked against this one: " + first_line(e.what()));
  }
  ::_exit(1);
}

// What is out of its bound; empty: nothing.
std::string faults_of(const MachineToCheck& machine, const Log& log) {
  const Faults planted = Faults::from_environment(0);
  std::string next, out;
  const auto add = [&out](const std::string& text) { out += (out.empty() ? "" : "; ") + text; };
  const ChildEnd end = in_child(
      time_of(machine.bounds.time),
      [&](const Send& send) {
        check_machine(
            machine, planted, [&](const std::string& what) { send(std::string(kNext) + what); },
            [&](const Finding& finding) { send(line_of(finding)); });
      },
      [&](const std::string& line) {
        if (line.starts_with(kNext)) {
          next = line.substr(kNext.size());
        } else {
          if (line.starts_with(kFail)) add(line.substr(kFail.size()));
          log.info("check: " + line);
        }
      });
  if (end.late) {
    add(next + ": no answer; bound: " + to_text(machine.bounds.time) + " for all checks");
  } else if (WIFSIGNALED(end.status)) {
    add(next + ": the check was ended by SIG" + ::sigabbrev_np(WTERMSIG(end.status)));
  } else if (end.status != 0) {
    add(next + ": the check failed");
  }
  return out;
}

}  // namespace

void JoinCheck::add_to(CLI::App& verb) {
  CLI::Option* flag = verb.add_flag(
      "--check-machine", wanted,
      "check this machine first: disk, memory and GPUs; one that fails starts no rank and returns "
      "7. Without -n, any program may follow \"--\", such as torchrun");
  verb.add_option("--check-against", against,
                  "HOST:PORT: also check clock and link, against that host, on which the same "
                  "command answers; every machine has the same")
      ->needs(flag);
  verb.add_option("--check-folder", folder,
                  "folder whose disk is checked; default: checkpoint.dir, or . without -n")
      ->needs(flag);
  verb.add_option("--check-bound", bounds,
                  "name=value: another bound. clock=5s round_trip=1s link=1MB disk=5MB (a second) "
                  "memory=256MiB gpu_memory=1GiB gpu_speed=0.7 (of this machine's fastest) "
                  "wait=5min (for the host) time=1min (for all checks)")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false)  // else it takes the "--" behind its value
      ->needs(flag);
}

std::string JoinCheck::words() const {
  if (!wanted) return {};
  std::string out = " --check-machine";
  if (!against.empty()) out += " --check-against " + shell_word(against);
  if (!folder.empty()) out += " --check-folder " + shell_word(folder);
  for (const std::string& bound : bounds) out += " --check-bound " + shell_word(bound);
  return out;
}

void JoinCheck::require_fit(const std::string& run_folder, bool gpus, const Log& log) const {
  MachineToCheck machine{.folder = folder.empty() ? run_folder : folder, .gpus = gpus};
  for (const std::string& bound : bounds) {
    read_config(override_yaml(bound, "--check-bound"), machine.bounds);
  }
  validate(machine.bounds);
  if (!against.empty()) {
    set_address(against, machine);
    serve_if_host(machine, log);
    wait_for_checks(machine.host, machine.port, time_of(machine.bounds.wait));
  }
  const std::string faults = faults_of(machine, log);
  if (faults.empty()) return;
  const std::string name = "machine " + host_name(), what = "stays out of the run: " + faults;
  if (!machine.host.empty()) {
    in_child(
        kReportTime,
        [&](const Send&) { report_to_host(machine.host, machine.port, name + ' ' + what); },
        [](const std::string&) {});
  }
  fail(Code::kSlowMachine, name, what);
}

}  // namespace troupe
