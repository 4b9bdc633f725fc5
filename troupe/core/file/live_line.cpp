#include "troupe/core/file/live_line.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "troupe/core/file/terminal.h"

namespace troupe {
namespace {

constexpr int kMostColumns = 100;
constexpr std::string_view kBegin = "\r\x1b[K";  // the line's begin; erase it

bool can_rewrite() {
  const char* const term = std::getenv("TERM");
  const std::string_view name = term == nullptr ? "" : term;
  return ::isatty(STDERR_FILENO) != 0 && !name.empty() && name != "dumb";
}

// All of it or, where the terminal takes nothing now, none.
void put(std::string_view text) {
  pollfd out = {STDERR_FILENO, POLLOUT, 0};
  if (::poll(&out, 1, 0) == 0) return;
  // A terminal that has gone is no fault of the run's.
  if (::write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

}  // namespace

LiveStderr::LiveStderr() : on_terminal_(can_rewrite()) {}

LiveStderr::~LiveStderr() {
  keep();
}

int LiveStderr::columns() const {
  return on_terminal_ ? std::min(kMostColumns, terminal_columns(STDERR_FILENO)) : 0;
}

void LiveStderr::draw() {
  put(std::string(kBegin) + shown_);
}

void LiveStderr::show(std::string_view line) {
  const int width = columns();
  if (width <= 0) return;
  const std::lock_guard lock(mutex_);
  shown_ = line.substr(0, static_cast<size_t>(width));
  draw();
}

void LiveStderr::keep() {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(shown_, "").empty()) put("\n");
}

void LiveStderr::write(Level level, std::string_view line) {
  if (!on_terminal_) return lines_->write(level, line);
  const std::lock_guard lock(mutex_);
  put(kBegin);
  lines_->write(level, line);
  if (!shown_.empty()) draw();
}

}  // namespace troupe
