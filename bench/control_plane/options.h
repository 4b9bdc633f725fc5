// What `control_plane` is asked for on its command line.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/control_plane/simulated_world.h"

namespace troupe::control_plane {

struct Options {
  std::string model = "deepseek-v3";
  std::vector<int64_t> ranks = {};  // ascending
  int64_t load_ranks = 0;           // 0: half as many
  bool save = false, load = false, hour = false, connections = false;
  std::vector<int64_t> lose = {};  // ascending
  bool lose_store = false, first_serves = false;
  std::chrono::milliseconds beat{1000};
  MeshShape mesh = {};  // all 1: shape_for()
  SimulatedFaults faults = {};
  std::string dir = {};   // empty: a folder among the temporary ones, removed at the end
  int64_t memory = 0;     // limit in bytes; 0: 90 % of the machine's memory
  double seconds = 1800;  // of a phase at most, as far as it can be told before

  bool loses() const { return !lose.empty() || lose_store; }
  bool loses_first() const { return !lose.empty() && lose.front() == 0; }
};

extern const char* const kUsage;
// E2005 names the word that is not known or lacks its number.
Options options_from(const std::vector<std::string>& words);

}  // namespace troupe::control_plane
