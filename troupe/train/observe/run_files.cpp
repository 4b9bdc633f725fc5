#include "troupe/train/observe/run_files.h"

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <thread>
#include <utility>

#include "troupe/core/config/config.h"
#include "troupe/core/config/json.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/host_name.h"
#include "troupe/core/file/secrets.h"
#include "troupe/core/text/suggest.h"
#include "troupe/core/text/text.h"
#include "troupe/core/text/utf8.h"
#include "troupe/core/unix_seconds.h"
#include "troupe/distributed/status/process.h"
#include "troupe/train/observe/version.h"

namespace troupe {
namespace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

}  // namespace

RunEnvironment this_environment(const std::vector<std::string>& command,
                                const std::string& device) {
  RunEnvironment out;
  out.version = version();
  out.commit = commit();
  for (const std::string& word : command) out.command += (out.command.empty() ? "" : " ") + word;
  out.command = without_secrets(out.command);
  out.host = host_name("unknown");
  out.processor = processor_name();
  out.device = device;
  out.torch = TORCH_VERSION;
  out.cores = std::thread::hardware_concurrency();
  out.threads = at::get_num_threads();
  out.pid = ::getpid();
  return out;
}

std::vector<std::string> unknown_variables() {
  // The first two are for tests: TROUPE_BUILD says where the program is.
  static const std::vector<std::string_view> known = {
      "TROUPE_FAULT", "TROUPE_BUILD", "TROUPE_PEERS", "TROUPE_TOKEN", "TROUPE_PYTHON"};
  static const std::vector<std::string_view> of_launch = {"TROUPE_LAUNCH", "TROUPE_PULSES",
                                                          "TROUPE_SPARE"};
  std::vector<std::string> out;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (!name.starts_with("TROUPE_")) continue;
    if (std::ranges::count(known, name) + std::ranges::count(of_launch, name) > 0) continue;
    std::string_view guess = nearest(name, known);
    if (guess.empty()) guess = known.front();
    out.push_back("environment: " + std::string(name) + " is not read; there is " +
                  std::string(guess) +
                  (guess == known[0] || guess == known[1] ? ", for tests" : ""));
  }
  return out;
}

std::optional<ExitRecord> read_exit(const std::string& run) {
  constexpr int64_t kMost = int64_t{1} << 20;
  const std::string path = run + "/exit.json";
  std::error_code error;
  if (!is_there(path) || std::filesystem::is_symlink(path, error)) return {};
  ExitRecord out;
  read_config(parse_json(read_file(path, Code::kFileFailed, kMost), path), out);
  return out;
}

StartRecord start_of_this_process() {
  const Process self = this_process();
  return {.host = host_name(),
          .pid = self.id,
          .started = std::time(nullptr),
          .process = to_text(self) + ' ' + begin_of(self.id)};
}

std::optional<bool> is_alive(const StartRecord& start) {
  const Process process = process_of(start.process), self = this_process();
  if (process.id <= 0) return {};
  if (process.machine == self.machine) {
    return !has_ended(process.id) && start.process.ends_with(' ' + begin_of(process.id));
  }
  // The same host since another boot; else another machine, or another container of this one.
  const auto boot = [](const std::string& machine) {
    return machine.substr(0, machine.find("pid:"));
  };
  if (start.host == host_name() && boot(process.machine) != boot(self.machine)) return false;
  return {};
}

std::string standing(const ExitRecord& record) {
  if (record.state != RunState::kRunning) {
    std::string out = std::string(to_text(record.state)) + ": code " + std::to_string(record.code);
    if (!record.error.empty()) out += ' ' + record.error;
    if (record.code != 0) out += " of rank " + std::to_string(record.rank);
    if (record.code != 0 && !record.phase.empty()) out += " in " + record.phase;
    out += " at step " + std::to_string(record.step);
    return record.message.empty() ? out : out + ": " + record.message;
  }
  const StartRecord& start = record.start;
  const std::string who = "process " + std::to_string(start.pid) + " on " + start.host +
                          ", attempt " + std::to_string(start.attempt);
  const std::optional<bool> alive = is_alive(start);
  if (!alive) return "running: " + who + "; whether it still does, only that machine can tell";
  if (*alive) return "running: " + who;
  return "killed: " + who +
         ", is gone and left no reason (SIGKILL, want of memory, or the machine went down)";
}

ExitRoom::ExitRoom(const std::string& run) {
  fd_ = ::open(run.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0644);
  if (fd_ < 0 || ::posix_fallocate(fd_, 0, kBytes) == 0) return;
  ::close(std::exchange(fd_, -1));
}

ExitRoom::~ExitRoom() {
  if (fd_ >= 0) ::close(fd_);
}

bool ExitRoom::publish(Fs& fs, const std::string& path, std::string_view text) {
  const auto size = static_cast<int64_t>(text.size());
  if (fd_ < 0 || size > kBytes) return false;
  const int fd = std::exchange(fd_, -1);
  const std::string file = "/proc/self/fd/" + std::to_string(fd);
  const std::string staging = std::filesystem::path(path).parent_path() / ".staging-exit";
  const bool written = write_all(fs, fd, std::as_bytes(std::span(text))) == 0 &&
                       ::ftruncate(fd, size) == 0 && fs.fsync(fd) == 0;
  const bool named =
      written && (::unlink(staging.c_str()) == 0 || errno == ENOENT) &&
      ::linkat(AT_FDCWD, file.c_str(), AT_FDCWD, staging.c_str(), AT_SYMLINK_FOLLOW) == 0;
  fs.close(fd);
  if (!named) return false;
  if (fs.rename(staging, path) == 0) return true;
  fs.unlink(staging);
  return false;
}

void write_exit(Fs& fs, const std::string& run, ExitRecord record, const std::string& error_file,
                const Log& log, ExitRoom* room) {
  record.message = without_secrets(record.message);
  try {
    std::ostringstream os;
    write_json(os, record);
    if (!run.empty() && ::access(run.c_str(), W_OK) == 0) {
      const std::string path = run + "/exit.json", text = repaired_utf8(os.str()) + "\n";
      try {
        publish_file(fs, path, text);
      } catch (const Error& error) {
        if (error.code() != Code::kNoSpace || room == nullptr || !room->publish(fs, path, text)) {
          throw;
        }
      }
    }
    if (error_file.empty() || record.code == 0) return;
    const std::string message = to_text(repaired_utf8(record.message));
    const std::string seconds = std::to_string(static_cast<int64_t>(unix_seconds()));
    write_output(fs, error_file,
                 "{\"message\":{\"message\":" + message + ",\"extraInfo\":{\"py_callstack\":" +
                     message + ",\"timestamp\":\"" + seconds + "\"}}}\n");
  } catch (const Error& error) {
    log.warning(error.what());
  }
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return file ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

}  // namespace troupe
