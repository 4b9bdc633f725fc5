// All that is wrong with a recipe, gathered before anything is thrown, each with its place.
#pragma once

#include <string>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/config/config_traits.h"

namespace troupe {

class Problems {
 public:
  explicit Problems(const Sources& sources) : sources_(sources) {}

  // "run.yaml:9: E2005 train.clip 0: must be positive"; of a default the place is the path alone.
  void add(const std::string& path, const std::string& what, Code code = Code::kBadValue);
  void add_all(const std::string& path, const std::vector<std::string>& whats);
  // Runs f and keeps what it throws: an Error's lines, with the path put before each that does not
  // name it.
  template <class F>
  void gather(const std::string& path, F&& f) {
    try {
      f();
    } catch (const Error& error) {
      add_error(path, error);
    }
  }

  bool empty() const { return lines_.empty(); }
  const std::vector<std::string>& lines() const { return lines_; }
  void throw_if_any() const;

 private:
  void add_error(const std::string& path, const Error& error);

  const Sources& sources_;
  std::vector<std::string> lines_;
  Code first_ = Code::kBadValue;
};

}  // namespace troupe
