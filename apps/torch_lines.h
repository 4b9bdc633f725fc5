// What PyTorch's threads write to std::cerr by themselves, as lines of the log: the first line of
// each message, without its call stack.
#pragma once

#include <iostream>
#include <mutex>
#include <streambuf>
#include <string>

#include "troupe/core/file/log.h"
#include "troupe/core/text/first_line.h"

namespace troupe {

// Until the end of its life, in which nobody else writes to std::cerr.
class TorchLines : public std::streambuf {
 public:
  explicit TorchLines(Log log) : log_(std::move(log)), inner_(std::cerr.rdbuf(this)) {}
  ~TorchLines() override { std::cerr.rdbuf(inner_); }
  TorchLines(const TorchLines&) = delete;
  TorchLines& operator=(const TorchLines&) = delete;

 protected:
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    const std::lock_guard lock(mutex_);
    message_.append(text, static_cast<size_t>(size));
    return size;
  }
  int_type overflow(int_type c) override {
    if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
    const char one = traits_type::to_char_type(c);
    return xsputn(&one, 1) == 1 ? c : traits_type::eof();
  }
  // A message is written whole and flushed; its end alone may come as a flush of its own.
  int sync() override {
    const std::lock_guard lock(mutex_);
    const std::string line = line_of(first_line(message_));
    message_.clear();
    if (!line.empty()) log_.warning(line);
    return 0;
  }

 private:
  // "[W1128 22:58:08.914 TCPStoreLibUvBackend.cpp:126] [c10d] Error processing client message: ..."
  static std::string line_of(const std::string& text) {
    if (text.empty()) return {};
    const size_t head = text.find("] [c10d] ");
    const std::string what = head == std::string::npos ? text : text.substr(head + 9);
    const bool stranger = what.find("client message") != std::string::npos;
    return (stranger ? "what is no part of this run connects to its port and is turned away: "
                     : "PyTorch: ") +
           what;
  }

  const Log log_;
  std::streambuf* const inner_;
  std::mutex mutex_;
  std::string message_;
};

}  // namespace troupe
