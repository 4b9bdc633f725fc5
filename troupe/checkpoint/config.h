// The recipe's `checkpoint:` section.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "troupe/core/text/text.h"
#include "troupe/core/text/units.h"

namespace troupe {

// What a start takes: "auto": the newest complete step, or none; "must": there has to be one;
// "never"; "step 1200": that one or nothing.
struct Resume {
  enum Kind { kAuto, kMust, kNever, kStep };
  Kind kind = kAuto;
  int64_t step = 0;  // of kStep
  bool operator==(const Resume&) const = default;
};
bool from_text(std::string_view text, Resume& out);
std::string to_text(const Resume& resume);
Expectation expectation(std::string_view text, const Resume& out);

// A save that comes while the last is still being written: waits for it, or is left out with a
// line.
enum class WhenBusy { kWait, kSkip };
constexpr auto names_of(WhenBusy) {
  return std::array{Named{"wait", WhenBusy::kWait}, Named{"skip", WhenBusy::kSkip}};
}

// A save that the disk refused (full, over quota, read-only, I/O errors): try again at the next
// interval, stop the run, or try again every `pause` until it works.
enum class OnError { kRetry, kStop, kPause };
constexpr auto names_of(OnError) {
  return std::array{Named{"retry", OnError::kRetry}, Named{"stop", OnError::kStop},
                    Named{"pause", OnError::kPause}};
}

struct CheckpointConfig {
  std::string dir;               // the run folder
  Duration every = minutes(30);  // 0: not by time
  int64_t every_steps = 0;       // 0: not by steps
  std::vector<int64_t> at = {};  // besides, at these steps
  int64_t keep = 3;              // newest ones; 0: all
  int64_t keep_every = 0;        // steps that are multiples stay for ever; 0: none
  int64_t keep_best = 0;         // lowest validation loss
  bool background = true;        // writes while training goes on
  WhenBusy when_busy = WhenBusy::kWait;
  OnError on_error = OnError::kRetry;
  Duration pause = seconds(10);
  Resume resume = {};
  std::string init_from = "";  // a checkpoint or model folder: weights alone, step 0
  bool cast = false;           // loads other floating element types too, with a line each
  bool strict = false;         // NaN in a loaded weight, too little disk: errors
  std::vector<std::string> waive_missing = {};  // names; a * stands for any text
  std::vector<std::string> waive_unused = {};
  std::vector<std::string> waive_changed = {};  // of the fingerprint: what may differ on resume

  static void visit(auto& c, auto&& f) {
    f("dir", c.dir);
    f("every", c.every);
    f("every_steps", c.every_steps);
    f("at", c.at);
    f("keep", c.keep);
    f("keep_every", c.keep_every);
    f("keep_best", c.keep_best);
    f("background", c.background);
    f("when_busy", c.when_busy);
    f("on_error", c.on_error);
    f("pause", c.pause);
    f("resume", c.resume);
    f("init_from", c.init_from);
    f("cast", c.cast);
    f("strict", c.strict);
    f("waive_missing", c.waive_missing);
    f("waive_unused", c.waive_unused);
    f("waive_changed", c.waive_changed);
  }
};

void validate(const CheckpointConfig& config);  // E2005, all faults at once

}  // namespace troupe
