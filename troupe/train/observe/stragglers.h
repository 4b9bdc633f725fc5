// Detection of ranks that are slower than the others at the same work. It only reports them.
//
// It compares each rank's own time, without its waits for others: step times are equal, because all
// ranks wait for the slowest. A rank is slow if in two consecutive windows (each at least 1 s and 5
// steps) it worked 1.5 times as long as the median of the others, and longer by a tenth of the
// window.
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

// Adds ranks/own_min_s, ranks/own_max_s and the same for each phase (ranks/forward_min_s): own time
// per step of the fastest and the slowest rank. Without ranks: nothing.
void add_own_seconds(LogRecord& record, const std::vector<OwnSeconds>& ranks, int64_t steps);

struct Straggler {
  int64_t rank = 0;
  double factor = 1;               // own time over the median of the others
  std::string_view phase;          // with the largest difference
  double seconds = 0, median = 0;  // per step in that phase
};

class Stragglers {
 public:
  // Adds a step of this rank.
  void add(const StepSeconds& step, double batch);
  // Sums since the last call.
  OwnSeconds take();

  // Judges a window of `steps` steps and `wall` seconds, from the own times of all ranks in order.
  // `alike`: those that have the same work, such as the ranks of one stage, which are compared with
  // each other; empty: all have. True if slow() changed.
  bool judge(const std::vector<OwnSeconds>& ranks, int64_t steps, double wall,
             const std::vector<std::vector<int64_t>>& alike = {});
  const std::optional<Straggler>& slow() const { return slow_; }

 private:
  OwnSeconds own_ = {};
  std::vector<OwnSeconds> window_;
  int64_t steps_ = 0;
  double wall_ = 0;
  std::optional<Straggler> last_, slow_;
};

}  // namespace troupe
