#include "troupe/train/observe/live_steps.h"

namespace troupe {

bool LiveSteps::show(LineFormat format, const LogRecord& record, const Position& now,
                     const Position& run) const {
  const int columns = terminal_ == nullptr ? 0 : terminal_->columns();
  if (columns <= 0 || format != LineFormat::kTroupe || now.steps >= run.steps) {
    hide();
    return false;
  }
  file_.info(step_line(format, record, now, run));
  terminal_->show(live_line(record, now, run, columns));
  return true;
}

void LiveSteps::keep() const {
  if (terminal_ != nullptr) terminal_->keep();
}

void LiveSteps::hide() const {
  if (terminal_ != nullptr) terminal_->show("");
}

}  // namespace troupe
