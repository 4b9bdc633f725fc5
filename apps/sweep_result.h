// What the runs of a sweep came to, as their folders tell: one table, the lowest loss first.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "troupe/core/text/text.h"

namespace troupe {

// How a run stands. kWaiting: it has not begun; kKilled: its process is gone without a word.
enum class SweepState { kWaiting, kRunning, kStopped, kKilled, kFailed, kFinished };
constexpr auto names_of(SweepState) {
  return std::array{
      Named{"waiting", SweepState::kWaiting}, Named{"running", SweepState::kRunning},
      Named{"stopped", SweepState::kStopped}, Named{"killed", SweepState::kKilled},
      Named{"failed", SweepState::kFailed},   Named{"finished", SweepState::kFinished}};
}

struct SweepResult {
  std::string name, folder;
  std::vector<std::string> set = {};  // "train.optimizer.lr=1e-3": what this run has of its own
  SweepState state = SweepState::kWaiting;
  int64_t code = 0;      // exit code; -1: none yet
  std::string why = {};  // of a run that failed or was killed
  double loss = NAN;     // NaN: none was logged
  std::string of = {};  // "valid": the last evaluation of the first set; "train": the mean over the
                        // last kLossSteps logged steps
  int64_t step = 0;
  double tokens_per_second = NAN;  // median over the second half of the logged steps
  static void visit(auto& r, auto&& f) {
    f("name", r.name);
    f("folder", r.folder);
    f("set", r.set);
    f("state", r.state);
    f("code", r.code);
    f("why", r.why);
    f("loss", r.loss);
    f("of", r.of);
    f("step", r.step);
    f("tokens_per_second", r.tokens_per_second);
  }
};
inline constexpr int64_t kLossSteps = 10;

// Fills in what the run's folder says of it; a file that cannot be read becomes `why`.
void read_result(SweepResult& result);
bool has_log(const SweepResult& result);  // a report can show it

// Finished runs first, those with a validation loss before those without, the lowest loss first;
// equals stay in the grid's order.
void rank_results(std::vector<SweepResult>& results);
void print_results(const std::vector<SweepResult>& ranked);

}  // namespace troupe
