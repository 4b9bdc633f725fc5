// Ranks that are slower than the others at the same work: told, and no more.
//
// Counted is what a rank does itself, its waiting for others left out; all ranks wait for the
// slowest, so the step's own time would not tell them apart. A rank is slow where, in two windows
// in a row (each of 1 s and 5 steps or more), it worked 1.5 times as long as the median of the
// others, and by a tenth of the time longer.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "troupe/train/observe/record.h"
#include "troupe/train/observe/step_report.h"

namespace troupe {

constexpr std::array<std::string_view, 5> kOwnPhases = {"batch", "forward", "backward", "reduce",
                                                        "optim"};
using OwnSeconds = std::array<double, kOwnPhases.size()>;

// ranks/own_min_s and ranks/own_max_s, and the same of each phase (ranks/forward_min_s): what the
// fastest and the slowest rank did themselves, a step. Of no ranks: nothing.
void add_own_seconds(Record& record, const std::vector<OwnSeconds>& ranks, int64_t steps);

struct Straggler {
  int64_t rank = 0;
  double factor = 1;               // of the median of the others
  std::string_view phase;          // with the largest difference
  double seconds = 0, median = 0;  // a step, in that phase
};

class Stragglers {
 public:
  // A step of this rank.
  void add(const StepSeconds& step, double batch);
  // What was added since the last call.
  OwnSeconds take();

  // Of all ranks, in their order, over so many steps that took `wall` seconds. True: what slow()
  // says has changed.
  bool judge(const std::vector<OwnSeconds>& ranks, int64_t steps, double wall);
  const std::optional<Straggler>& slow() const { return slow_; }

 private:
  OwnSeconds own_ = {};
  std::vector<OwnSeconds> window_;
  int64_t steps_ = 0;
  double wall_ = 0;
  std::optional<Straggler> last_, slow_;
};

}  // namespace troupe
