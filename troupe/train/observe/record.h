// What one line of log.jsonl holds: names and values in the order in which they were added.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe {

class LogRecord {
 public:
  void add(std::string_view name, double value);  // JSON has no NaN: null
  void add(std::string_view name, int64_t value);
  void add(std::string_view name, std::string_view text);  // without core/file/secrets.h's
  void add(std::string_view name, std::span<const double> values);
  void add_json(std::string_view name, std::string_view json);  // finished JSON

  // Changes a number for scalar() and step lines; the JSON stays as it is.
  void set(std::string_view name, double value);

  // The numbers among them: what TensorBoard shows.
  const std::vector<std::pair<std::string, double>>& scalars() const { return scalars_; }
  double scalar(std::string_view name, double otherwise = 0) const;
  std::string json() const;  // one line, without its end

 private:
  std::string body_;
  std::vector<std::pair<std::string, double>> scalars_;
};

}  // namespace troupe
