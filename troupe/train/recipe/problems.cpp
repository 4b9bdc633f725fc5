#include "troupe/train/recipe/problems.h"

#include <sstream>

namespace troupe {

void Problems::add(const std::string& path, const std::string& what, Code code) {
  if (lines_.empty()) first_ = code;
  const auto found = sources_.find(path);
  const std::string place = found == sources_.end() ? "" : to_text(found->second) + ": ";
  lines_.push_back(place + to_text(code) + ' ' + path + ": " + what);
}

void Problems::add_all(const std::string& path, const std::vector<std::string>& whats) {
  for (const std::string& what : whats) add(path, what);
}

void Problems::add_error(const std::string& path, const Error& error) {
  std::istringstream lines(error.what());
  for (std::string line; std::getline(lines, line);) {
    if (lines_.empty()) first_ = error.code();
    // A line that names the path already says where the fault is.
    lines_.push_back(line.find(path) == std::string::npos ? path + ": " + line : line);
  }
}

void Problems::throw_if_any() const {
  if (lines_.empty()) return;
  std::string text;
  for (const std::string& line : lines_) text += (text.empty() ? "" : "\n") + line;
  throw Error(text, first_);
}

}  // namespace troupe
