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

// The frozen weights of a run with adapters that began from init_from: its checkpoints name the
// base that has them, or hold them too.
enum class SavedBase { kNamed, kSaved };
constexpr auto names_of(SavedBase) {
  return std::array{Named{"named", SavedBase::kNamed}, Named{"saved", SavedBase::kSaved}};
}

struct CheckpointConfig {
  std::string dir;               // the run folder
  Duration every = minutes(30);  // 0: not by time
  int64_t every_steps = 0;       // 0: not by steps
  std::vector<int64_t> at = {};  // besides, at these steps
  int64_t keep = 3;              // newest ones; 0: all
  int64_t keep_every = 0;        // steps that are multiples stay forever; 0: none
  int64_t keep_best = 0;         // lowest validation loss
  bool background = true;        // writes while training goes on
  WhenBusy when_busy = WhenBusy::kWait;
  OnError on_error = OnError::kRetry;
  Duration pause = seconds(10);
  Resume resume = {};
  std::string init_from = "";  // a run's folder or one of its steps: weights alone, step 0
  SavedBase base = SavedBase::kNamed;
  bool cast = false;    // loads other floating element types too, with a line each
  bool strict = false;  // NaN in a loaded weight, too little disk: errors
  std::vector<std::string> waive_missing = {};  // names; a * stands for any text
  std::vector<std::string> waive_unused = {};
  std::vector<std::string> waive_changed = {};  // of the fingerprint: what may differ on resume

  static void visit(auto& c, auto&& f) {
    f("dir", c.dir, "Run folder; relative to the working directory.");
    f("every", c.every, "Time between checkpoints; 0s: off.");
    f("every_steps", c.every_steps, "Steps between checkpoints; 0: off.");
    f("at", c.at, "Additional steps to save at.");
    f("keep", c.keep, "Number of newest checkpoints to keep; 0: all.");
    f("keep_every", c.keep_every,
      "Keeps checkpoints at multiples of this step permanently; 0: off.");
    f("keep_best", c.keep_best, "Number of checkpoints with the lowest validation loss to keep.");
    f("background", c.background, "Writes checkpoints while training continues.");
    f("when_busy", c.when_busy, "A save that meets an unfinished one waits, or is skipped.");
    f("on_error", c.on_error, "On a full disk: retry later, stop, or pause.");
    f("pause", c.pause, "Time between attempts of on_error pause.");
    f("resume", c.resume, "auto, must, never, or \"step 1200\".");
    f("init_from", c.init_from,
      "Run folder (its newest step), or one step of it, for the initial weights; starts at step "
      "0.");
    f("base", c.base,
      "Frozen weights beside adapters that come from init_from: named, checkpoints say where they "
      "are; saved, they hold them.");
    f("cast", c.cast, "Casts tensors of other floating-point types on load, with a log line each.");
    f("strict", c.strict, "Fails on NaN in a loaded weight, or on too little disk space.");
    f("waive_missing", c.waive_missing, "Tensors that the checkpoint may lack; * for any text.");
    f("waive_unused", c.waive_unused, "Tensors of the checkpoint that may stay unused.");
    f("waive_changed", c.waive_changed, "Data and model settings that may differ on resume.");
  }
};

void validate(const CheckpointConfig& config);  // E2005, all faults at once

}  // namespace troupe
