// What a run leaves in its folder besides checkpoints and logs.
//   recipe.yaml   resolved: every value, with where it was given
//   given.yaml    the recipe as it was written, with its --set
//   env.json      version, command, host, processor, device, PyTorch
//   exit.json     how the run stands, or ended
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/file/log.h"
#include "troupe/core/file/publish.h"
#include "troupe/core/text/text.h"

namespace troupe {

// ended: by a version that told the ends apart by the code alone.
enum class RunState { kEnded, kRunning, kFinished, kStopped, kFailed };
constexpr auto names_of(RunState) {
  return std::array{Named{"ended", RunState::kEnded}, Named{"running", RunState::kRunning},
                    Named{"finished", RunState::kFinished}, Named{"stopped", RunState::kStopped},
                    Named{"failed", RunState::kFailed}};
}

// The start that a record tells of: rank 0's process, and which attempt of its launcher it was.
struct StartRecord {
  int64_t attempt = 1;
  std::string launch = "";  // the same in all attempts of a launcher; empty: not begun, or none
  std::string host = "";
  int64_t pid = 0, started = 0;  // seconds since 1970
  std::string process = "";      // for who looks it up
  static void visit(auto& s, auto&& f) {
    f("attempt", s.attempt);
    f("launch", s.launch);
    f("host", s.host);
    f("pid", s.pid);
    f("started", s.started);
    f("process", s.process);
  }
};
StartRecord start_of_this_process();
// Whether that process is there; nothing where this machine cannot tell, as of another's.
std::optional<bool> is_alive(const StartRecord& start);

struct ExitRecord {
  RunState state = RunState::kEnded;
  int64_t code = 0;        // -1: it runs
  std::string error = "";  // "E5001"
  int64_t rank = 0;
  int64_t step = 0;
  std::string phase = "";
  std::string message = "";
  bool resumable = false;
  std::string checkpoint = "";  // the newest
  StartRecord start = {};
  static void visit(auto& r, auto&& f) {
    f("state", r.state);
    f("code", r.code);
    f("error", r.error);
    f("rank", r.rank);
    f("step", r.step);
    f("phase", r.phase);
    f("message", r.message);
    f("resumable", r.resumable);
    f("checkpoint", r.checkpoint);
    StartRecord::visit(r.start, f);
  }
};
// RUN/exit.json; nothing where there is none, or a link (F141).
std::optional<ExitRecord> read_exit(const std::string& run);
// The record in a line: "running: process 12 on host, attempt 1"; of one that runs no more and left
// no reason, "killed: ...".
std::string standing(const ExitRecord& record);

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
