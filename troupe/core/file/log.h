// Lines for people: without secrets, and without what a terminal would obey. A Log is passed down
// and copied freely; there is no global one. It takes finished strings, because no header of ours
// may meet the formatting library.
//   log.info("resumed step " + std::to_string(step));
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "troupe/core/text/text.h"

namespace troupe {

enum class Level { kDebug, kInfo, kWarning, kError };

constexpr auto names_of(Level) {
  return std::array{Named{"debug", Level::kDebug}, Named{"info", Level::kInfo},
                    Named{"warning", Level::kWarning}, Named{"error", Level::kError}};
}

// Where lines go. Any thread may write at any time; a line stays whole; nothing is thrown.
class LogSink {
 public:
  virtual ~LogSink() = default;
  virtual void write(Level level, std::string_view line) = 0;
};

// stderr: "12:30:01.250 warning text", on a terminal colored, and broken at spaces (text/wrap.h); a
// reader that stops loses lines.
std::shared_ptr<LogSink> stderr_sink();

// A file, "2026-11-21 12:30:01.250+01:00 warning text", the local time and its offset from UTC,
// synced to the system line by line, and begun anew at `max_bytes`: `path` is the newest, its `kept`
// predecessors are log.1.txt and so on, the higher the older. A disk that is full or a folder that
// was deleted costs lines and one warning on stderr, never the run: each further line tries again,
// makes the folder and the file where they are gone.
std::shared_ptr<LogSink> file_sink(const std::string& path, int64_t max_bytes = int64_t{64} << 20,
                                   int kept = 3);

class Log {
 public:
  Log() = default;  // says nothing
  explicit Log(std::vector<std::shared_ptr<LogSink>> sinks, Level least = Level::kInfo,
               std::string prefix = "")
      : sinks_(std::move(sinks)), least_(least), prefix_(std::move(prefix)) {}

  void debug(std::string_view text) const { write(Level::kDebug, text); }
  void info(std::string_view text) const { write(Level::kInfo, text); }
  void warning(std::string_view text) const { write(Level::kWarning, text); }
  void error(std::string_view text) const { write(Level::kError, text); }
  bool says(Level level) const { return level >= least_ && !sinks_.empty(); }

 private:
  void write(Level level, std::string_view text) const;

  std::vector<std::shared_ptr<LogSink>> sinks_;
  Level least_ = Level::kInfo;
  std::string prefix_;
};

// What the lines of a rank begin with: "[3/8] "; nothing in a world of one.
std::string rank_prefix(int rank, int world);

}  // namespace troupe
