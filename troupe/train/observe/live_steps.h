// A run's steps on a terminal: one line that is rewritten (core/file/live_line.h), while the file
// has a line for each.
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

  // False: the line is for the log, as everywhere but on a terminal. So are the last of a run,
  // which stays, and lines that other programs read (LineFormat).
  bool show(LineFormat format, const Record& record, const Position& now,
            const Position& run) const;
  void hide() const;

 private:
  std::shared_ptr<LiveStderr> terminal_;
  Log file_;
};

}  // namespace troupe
