// How a run stands, read from its folder by whoever asks: exit.json, log.jsonl and the checkpoints.
// Nothing is written, and the run need not be of this machine.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "troupe/train/observe/run_files.h"

namespace troupe {

struct RunStatus {
  std::string run = "";    // the folder
  std::string state = "";  // a RunState; killed: it ran and its process is gone; unknown: no record
  int64_t code = 0;        // of the end; -1: none yet
  std::string error = "";  // "E5001"
  std::string message = "";
  std::string host = "";
  int64_t pid = 0;
  std::optional<bool> alive = {};  // null: only another machine could tell, or there is no process
  int64_t spares = 0;           // of `troupe launch --spares`, that wait; 0 for another machine's
  int64_t step = 0;             // the last one that is done, as far as the files tell
  double loss = NAN;            // that was logged last
  std::string checkpoint = "";  // the newest in the folder
  int64_t checkpoints = 0;
  int64_t lost_steps = 0;    // done, and in no checkpoint: a start does them again
  double silent_s = NAN;     // since the last line of log.jsonl
  std::string warning = "";  // a file of the run that cannot be read

  static void visit(auto& s, auto&& f) {
    f("run", s.run);
    f("state", s.state);
    f("code", s.code);
    f("error", s.error);
    f("message", s.message);
    f("host", s.host);
    f("pid", s.pid);
    f("alive", s.alive);
    f("spares", s.spares);
    f("step", s.step);
    f("loss", s.loss);
    f("checkpoint", s.checkpoint);
    f("checkpoints", s.checkpoints);
    f("lost_steps", s.lost_steps);
    f("silent_s", s.silent_s);
    f("warning", s.warning);
  }
};

// Whether the folder has what a run leaves: exit.json, log.jsonl or checkpoints.
bool is_run(const std::string& folder);
// The folder itself where it is a run, else the runs in it by name. E2005 where there are none.
std::vector<std::string> run_folders_in(const std::string& folder);

// `now`: seconds since 1970.
RunStatus run_status(const std::string& run, double now);

// What `troupe status` ends with for this run: 0 where it runs, finished or was stopped with a saved
// step; the code of its failure; 6 where it was killed; 4 where nothing tells how it stands.
int exit_code_of(const RunStatus& status);

// Four lines: state, step and loss, checkpoint, age of the log.
std::string status_text(const RunStatus& status);
// A line for each run under a line of titles.
std::string status_table(const std::vector<RunStatus>& runs);

// Why a run ended, and what to do, in five lines: the end, the log's last line, its last event, the
// checkpoints, what comes next.
std::string end_text(const std::string& run, double now);

}  // namespace troupe
