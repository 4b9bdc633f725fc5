// What a machine must pass before its ranks join a run: `troupe launch --check-machine`.
#pragma once

#include <CLI/App.hpp>

#include <string>
#include <vector>

#include "troupe/core/file/log.h"

namespace troupe {

struct JoinCheck {
  bool wanted = false;
  std::string against;              // HOST:PORT that clock and link are checked against, or empty
  std::string folder;               // whose disk is checked; empty: the run's
  std::vector<std::string> bounds;  // "disk=50MB"

  void add_to(CLI::App& verb);
  std::string words() const;  // the same options again, for a command line

  // E7102 names this machine with what is out of its bound; E6002 where the host does not answer.
  // On that host a process is started that answers the other machines and ends with this one, also
  // where this one becomes another program. Call it while the process has one thread and has asked
  // for no device: it forks. `gpus`: whether the run computes on them.
  void require_fit(const std::string& run_folder, bool gpus, const Log& log) const;
};

}  // namespace troupe
