// stderr with a last line that is written again in its place, below the lines that stay:
//   const auto lines = std::make_shared<LiveStderr>();
//   Log log({lines});
//   lines->show("step 12/420  loss 6.1");   // in the place of the one before
//   log.info("step 10 saved");              // stays, above it
// Where stderr is no terminal, or one that cannot do it (TERM=dumb or none), there is no such line,
// and the others are stderr_sink()'s.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "troupe/core/file/log.h"

namespace troupe {

class LiveStderr : public LogSink {
 public:
  LiveStderr();
  LiveStderr(const LiveStderr&) = delete;
  LiveStderr& operator=(const LiveStderr&) = delete;
  ~LiveStderr() override;  // as keep()

  // What fits into a line of the terminal, at most 100; 0: there is no live line.
  int columns() const;
  // Cut to columns(). A terminal that takes nothing (Ctrl-S) is not waited for.
  void show(std::string_view line);
  // The line that is shown stays: what is written next begins below it.
  void keep();
  void write(Level level, std::string_view line) override;

 private:
  void draw();

  const bool on_terminal_;
  const std::shared_ptr<LogSink> lines_ = stderr_sink();
  std::mutex mutex_;
  std::string shown_ = {};  // empty: nothing is
};

}  // namespace troupe
