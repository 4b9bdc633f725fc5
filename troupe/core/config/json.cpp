// The one file of core that knows nlohmann's JSON.
#include "troupe/core/config/json.h"

#include <nlohmann/json.hpp>

#include <cstdint>
#include <set>

#include "troupe/core/check.h"
#include "troupe/core/config/yaml_builder.h"

namespace troupe {
namespace {

class Events : public nlohmann::json_sax<nlohmann::json> {
 public:
  Events(const std::string& file, Code fault)
      : file_(file),
        fault_(fault),
        builder_({.depth = 64,
                  .values = 1000000,
                  .bytes = SIZE_MAX,
                  .malformed = fault,
                  .written_twice = fault}) {}

  Yaml take() { return builder_.take(); }

  bool null() override { return add(detail::null_value({file_})); }
  bool boolean(bool value) override { return scalar(to_text(value)); }
  bool number_integer(number_integer_t value) override { return scalar(to_text(value)); }
  bool number_unsigned(number_unsigned_t value) override { return scalar(to_text(value)); }
  bool number_float(number_float_t, const string_t& text) override { return scalar(text); }
  bool string(string_t& text) override { return scalar(text); }
  bool binary(binary_t&) override { return false; }
  bool key(string_t& name) override { return scalar(name); }
  bool start_object(size_t) override { return open(Yaml::Kind::kMap); }
  bool start_array(size_t) override { return open(Yaml::Kind::kList); }
  bool end_object() override { return add(builder_.close()); }
  bool end_array() override { return add(builder_.close()); }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    const std::string what =
        e.what();  // "[json.exception.parse_error.101] parse error at line ..."
    fail(fault_, file_, what.substr(what.find(']') + 2));
  }

 private:
  bool scalar(const std::string& text) { return add(detail::scalar_value({file_}, text)); }
  bool open(Yaml::Kind kind) { return builder_.open(kind, {file_}), true; }
  bool add(Yaml value) { return builder_.add(std::move(value)), true; }

  const std::string& file_;
  const Code fault_;
  detail::YamlBuilder builder_;
};

}  // namespace

Yaml parse_json(const std::string& text, const std::string& file, Code fault) {
  Events events(file, fault);
  nlohmann::json::sax_parse(text, &events);
  return events.take();
}

}  // namespace troupe
