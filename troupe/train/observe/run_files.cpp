#include "troupe/train/observe/run_files.h"

#include <ATen/Parallel.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "troupe/core/config/json.h"
#include "troupe/core/file/secrets.h"
#include "troupe/core/text/suggest.h"
#include "troupe/core/text/text.h"
#include "troupe/core/text/utf8.h"
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
  char host[256] = {};
  out.host = ::gethostname(host, sizeof(host) - 1) == 0 ? host : "unknown";
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
  static const std::vector<std::string_view> known = {"TROUPE_FAULT", "TROUPE_BUILD",
                                                      "TROUPE_PEERS", "TROUPE_TOKEN"};
  static const std::vector<std::string_view> of_launch = {"TROUPE_LAUNCH", "TROUPE_PULSES"};
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

void write_exit(Fs& fs, const std::string& run, ExitRecord record, const std::string& error_file,
                const Log& log) {
  record.message = without_secrets(record.message);
  try {
    std::ostringstream os;
    write_json(os, record);
    if (!run.empty() && ::access(run.c_str(), W_OK) == 0) {
      publish_file(fs, run + "/exit.json", repaired_utf8(os.str()) + "\n");
    }
    if (error_file.empty() || record.code == 0) return;
    const auto since = std::chrono::system_clock::now().time_since_epoch();
    const std::string message = to_text(repaired_utf8(record.message));
    const std::string seconds =
        std::to_string(std::chrono::duration_cast<std::chrono::seconds>(since).count());
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
