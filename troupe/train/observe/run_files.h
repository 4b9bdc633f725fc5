// What a run leaves in its folder besides checkpoints and logs.
//   recipe.yaml   resolved: every value, with where it was given
//   given.yaml    the recipe as it was written, with its --set
//   env.json      version, command, host, processor, device, PyTorch
//   exit.json     how the run ended
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/file/log.h"
#include "troupe/core/file/publish.h"

namespace troupe {

struct ExitRecord {
  int64_t code = 0;
  std::string error = "";  // "E5001"
  int64_t rank = 0;
  int64_t step = 0;
  std::string phase = "";
  std::string message = "";
  bool resumable = false;
  std::string checkpoint = "";  // the newest
  static void visit(auto& r, auto&& f) {
    f("code", r.code);
    f("error", r.error);
    f("rank", r.rank);
    f("step", r.step);
    f("phase", r.phase);
    f("message", r.message);
    f("resumable", r.resumable);
    f("checkpoint", r.checkpoint);
  }
};

struct RunEnvironment {
  std::string version, commit, command, host, processor, device, torch;
  int64_t cores = 0, threads = 0, pid = 0, ranks = 1;
  static void visit(auto& e, auto&& f) {
    f("version", e.version);
    f("commit", e.commit);
    f("command", e.command);
    f("host", e.host);
    f("processor", e.processor);
    f("device", e.device);
    f("torch", e.torch);
    f("cores", e.cores);
    f("threads", e.threads);
    f("pid", e.pid);
    f("ranks", e.ranks);
  }
};
RunEnvironment this_environment(const std::vector<std::string>& command, const std::string& device);

// A line for each variable TROUPE_* of the environment that nothing reads, with the nearest that
// is.
std::vector<std::string> unknown_variables();

// Room on the disk for exit.json from the run's start, so that a disk that is full by its end does
// not hide why it ended: a file without a name, which the system frees with the process. Where the
// disk has no such files, or no room already, there is none.
class ExitRoom {
 public:
  ExitRoom() = default;
  explicit ExitRoom(const std::string& run);
  ExitRoom(const ExitRoom&) = delete;
  ExitRoom& operator=(const ExitRoom&) = delete;
  ~ExitRoom();
  // Writes `text` into the reserved file and renames it to `path`, which it replaces. False: no file
  // is reserved, or the text is longer than kBytes.
  bool publish(Fs& fs, const std::string& path, std::string_view text);

  static constexpr int64_t kBytes = 32 << 10;

 private:
  int fd_ = -1;
};

// Writes RUN/exit.json, and TORCHELASTIC_ERROR_FILE in torchrun's form where `error_file` names it.
// Never throws: a full disk must not hide the error that is reported.
// `room`: what is written where the disk is full.
void write_exit(Fs& fs, const std::string& run, ExitRecord record, const std::string& error_file,
                const Log& log, ExitRoom* room = nullptr);

int64_t resident_bytes();  // of this process; 0: unknown

}  // namespace troupe
