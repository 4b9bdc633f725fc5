#include "troupe/train/observe/record.h"

#include <cmath>

#include "troupe/core/file/secrets.h"
#include "troupe/core/text/text.h"
#include "troupe/core/text/utf8.h"

namespace troupe {
namespace {

std::string number(double value) {
  return std::isfinite(value) ? to_text(value) : "null";
}

}  // namespace

void LogRecord::add(std::string_view name, double value) {
  add_json(name, number(value));
  scalars_.emplace_back(name, value);
}

void LogRecord::add(std::string_view name, int64_t value) {
  add_json(name, to_text(value));
  scalars_.emplace_back(name, static_cast<double>(value));
}

void LogRecord::add(std::string_view name, std::string_view text) {
  add_json(name, to_text(repaired_utf8(without_secrets(text))));
}

void LogRecord::add(std::string_view name, std::span<const double> values) {
  std::string list = "[";
  for (const double value : values) {
    if (list.size() > 1) list += ',';
    list += number(value);
  }
  list += ']';
  add_json(name, list);
}

void LogRecord::add_json(std::string_view name, std::string_view json) {
  if (!body_.empty()) body_ += ',';
  body_ += to_text(std::string(name));
  body_ += ':';
  body_ += json;
}

void LogRecord::set(std::string_view name, double value) {
  for (auto& [own, old] : scalars_) {
    if (own == name) old = value;
  }
}

double LogRecord::scalar(std::string_view name, double otherwise) const {
  for (const auto& [own, value] : scalars_) {
    if (own == name) return value;
  }
  return otherwise;
}

std::string LogRecord::json() const {
  std::string out = "{";
  out += body_;
  out += '}';
  return out;
}

}  // namespace troupe
