// The one file that knows spdlog.
#include "troupe/core/file/log.h"

#include <poll.h>
#include <spdlog/sinks/rotating_file_sink.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <sys/stat.h>
#include <unistd.h>

#include <exception>
#include <iostream>
#include <mutex>
#include <stdexcept>

#include "troupe/core/file/secrets.h"
#include "troupe/core/file/terminal.h"
#include "troupe/core/text/plain_text.h"
#include "troupe/core/text/text.h"
#include "troupe/core/text/wrap.h"

namespace troupe {
namespace {

spdlog::details::log_msg message(Level level, std::string_view line) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::debug, spdlog::level::info,
                                                   spdlog::level::warn, spdlog::level::err};
  return {"", kLevels[static_cast<int>(level)], spdlog::string_view_t(line.data(), line.size())};
}

// The columns before a line's text: "12:30:01.250 info ".
int begin_of(Level level) {
  constexpr std::string_view kTime = "12:30:01.250 ";
  return static_cast<int>(kTime.size() + to_text(level).size() + 1);
}

class StderrSink : public LogSink {
 public:
  StderrSink() { sink_.set_pattern("%H:%M:%S.%e %^%l%$ %v"); }

  void write(Level level, std::string_view line) override {
    const std::lock_guard lock(mutex_);
    try {
      if (!can_take()) return void(++lost_);
      if (const int64_t lost = std::exchange(lost_, 0); lost > 0) {
        sink_.log(message(Level::kWarning,
                          std::to_string(lost) + " lines were not read here and are lost"));
      }
      const int columns = terminal_columns(STDERR_FILENO);
      const std::string shown = columns > 0 ? wrapped(line, columns, begin_of(level)) : "";
      sink_.log(message(level, columns > 0 ? shown : line));
    } catch (const std::exception&) {
      // Nobody is left to tell.
    }
  }

 private:
  // A reader that is merely slow is waited for. One that has stopped (a stuck pipe, a terminal
  // after Ctrl-S) holds nobody up: lines are left out and counted until it reads again.
  bool can_take() const {
    constexpr int kPatience = 200;  // ms
    pollfd out = {STDERR_FILENO, POLLOUT, 0};
    return ::poll(&out, 1, lost_ == 0 ? kPatience : 0) != 0;  // an error is the sink's to meet
  }

  std::mutex mutex_;
  int64_t lost_ = 0;
  spdlog::sinks::stderr_color_sink_st sink_;
};

class FileSink : public LogSink {
 public:
  FileSink(std::string path, int64_t max_bytes, int kept)
      : path_(std::move(path)), max_bytes_(max_bytes), kept_(kept) {}

  void write(Level level, std::string_view line) override {
    const std::lock_guard lock(mutex_);
    try {
      // A deleted file goes on taking lines that nobody will see.
      if (sink_ == nullptr || ::access(path_.c_str(), F_OK) != 0) open();
      sink_->log(message(level, line));
      sink_->flush();
    } catch (const std::exception& e) {
      sink_.reset();
      if (!std::exchange(warned_, true)) {
        std::cerr << plain_text(path_ + ": log lines are lost: " + e.what()) + '\n';
      }
    }
  }

 private:
  using Sink = spdlog::sinks::rotating_file_sink_st;

  void open() {
    sink_.reset();  // Two at once would both rotate.
    struct stat info {};
    // Others may have planted it (F141); a pipe would wait for a reader.
    if (::lstat(path_.c_str(), &info) == 0 && (S_ISLNK(info.st_mode) || S_ISFIFO(info.st_mode))) {
      throw std::runtime_error("it is a link or a pipe, which a log does not write to");
    }
    sink_ =
        std::make_unique<Sink>(path_, static_cast<size_t>(max_bytes_), static_cast<size_t>(kept_));
    sink_->set_pattern("%Y-%m-%d %H:%M:%S.%e%z %l %v");
  }

  const std::string path_;
  const int64_t max_bytes_;
  const int kept_;
  std::mutex mutex_;
  std::unique_ptr<Sink> sink_;
  bool warned_ = false;
};

}  // namespace

std::shared_ptr<LogSink> stderr_sink() {
  return std::make_shared<StderrSink>();
}

std::shared_ptr<LogSink> file_sink(const std::string& path, int64_t max_bytes, int kept) {
  return std::make_shared<FileSink>(path, max_bytes, kept);
}

void Log::write(Level level, std::string_view text) const {
  if (!says(level)) return;
  const std::string line = prefix_ + plain_text(without_secrets(text));
  for (const auto& sink : sinks_) sink->write(level, line);
}

std::string rank_prefix(int rank, int world) {
  return world == 1 ? "" : '[' + std::to_string(rank) + '/' + std::to_string(world) + "] ";
}

}  // namespace troupe
