// What ranks write down for each other at the meeting point: small texts. From any thread. E6001
// where the meeting point is gone.
#pragma once

#include <chrono>
#include <optional>
#include <string>

namespace troupe {

class Board {
 public:
  virtual ~Board() = default;
  virtual void post(const std::string& key, const std::string& text) = 0;
  virtual std::optional<std::string> peek(const std::string& key) = 0;  // does not wait
  // E6001 where it is not there in time.
  virtual std::string read(const std::string& key, std::chrono::milliseconds timeout) = 0;
  // Posts where nothing is yet; what is there then.
  virtual std::string claim(const std::string& key, const std::string& text) = 0;
};

}  // namespace troupe
