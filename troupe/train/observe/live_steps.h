// Progress on a terminal: one line that is rewritten (core/file/live_line.h); the log file has a
// line for each step.
#pragma once

#include <memory>
#include <utility>

#include "troupe/core/file/live_line.h"
#include "troupe/train/observe/step_line.h"

namespace troupe {

class LiveSteps {
 public:
  LiveSteps() = default;  // no terminal: shows nothing
  LiveSteps(std::shared_ptr<LiveStderr> terminal, Log file)
      : terminal_(std::move(terminal)), file_(std::move(file)) {}

  // False if the line belongs into the log: without a terminal, for the last step of a run, and for
  // formats that other programs parse (LineFormat).
  bool show(LineFormat format, const LogRecord& record, const Position& now,
            const Position& run) const;
  void hide() const;
  void keep() const;  // the line that is shown: what is written next begins below it

 private:
  std::shared_ptr<LiveStderr> terminal_;
  Log file_;
};

}  // namespace troupe
