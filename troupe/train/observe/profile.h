// Where the time of some steps goes, by PyTorch's profiler: a trace for chrome://tracing or
// Perfetto in RUN/profile-STEP.json, and a table in the log of the operators that took the most
// time of their own: on a GPU its kernels and copies, else the operators on the CPU.
//
//   profile: {from: 10, steps: 3}      steps 10 to 12
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/file/log.h"

namespace troupe {

struct ProfileConfig {
  int64_t from = 0;  // the first step that is looked at, from 1; 0: none
  int64_t steps = 3;
  int64_t top = 20;  // rows of the table
  static void visit(auto& c, auto&& f) {
    f("from", c.from, "First profiled step, from 1; 0: off.");
    f("steps", c.steps, "Number of profiled steps.");
    f("top", c.top, "Rows of the table in the log.");
  }
};
std::vector<std::string> profile_faults(const ProfileConfig& config);

// An operator or kernel that ran: times in nanoseconds. Those of one lane (a thread, a stream)
// nest.
struct ProfileSpan {
  std::string name;
  int64_t lane = 0, begin = 0, end = 0;
};
struct ProfileRow {
  std::string name;
  int64_t calls = 0, ns = 0;  // without the time of what ran inside
};
// The most expensive first.
std::vector<ProfileRow> profile_rows(std::vector<ProfileSpan> spans);

// Calls begin() before each step and end() after it; the other steps cost nothing.
class Profile {
 public:
  Profile(const ProfileConfig& config, std::string folder, Log log, bool cuda)
      : config_(config), folder_(std::move(folder)), log_(std::move(log)), cuda_(cuda) {}
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  void begin(int64_t step);
  void end(int64_t step);

 private:
  void finish();

  ProfileConfig config_;
  std::string folder_;
  Log log_;
  bool cuda_;
  int64_t first_ = 0, done_ = 0;  // of the steps being recorded
};

}  // namespace troupe
