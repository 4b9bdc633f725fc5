// The one file of core that knows nlohmann's JSON.
#include "troupe/core/json.h"

#include <nlohmann/json.hpp>

#include <set>

#include "troupe/core/check.h"

namespace troupe {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr int kMaxValues = 1000000;

// Receives the parser's events. What is open now is a stack, so that depth costs no recursion.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(const std::string& file) : file_(file) {}

  Yaml take() { return std::move(root_); }

  bool null() override { return add({.where = {file_}}); }
  bool boolean(bool value) override { return scalar(to_text(value)); }
  bool number_integer(number_integer_t value) override { return scalar(to_text(value)); }
  bool number_unsigned(number_unsigned_t value) override { return scalar(to_text(value)); }
  bool number_float(number_float_t, const string_t& text) override { return scalar(text); }
  bool string(string_t& text) override { return scalar(text); }
  bool binary(binary_t&) override { return false; }
  bool start_object(size_t) override { return open(Yaml::Kind::kMap); }
  bool start_array(size_t) override { return open(Yaml::Kind::kList); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    Open& map = open_.back();
    if (!map.names.insert(name).second) {
      fail(Code::kBadJson, file_, "field \"" + name + "\" is written twice");
    }
    map.value.fields.push_back({name, {file_}, {}});
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& e) override {
    const std::string what =
        e.what();  // "[json.exception.parse_error.101] parse error at line ..."
    fail(Code::kBadJson, file_, what.substr(what.find(']') + 2));
  }

 private:
  struct Open {
    Yaml value;
    std::set<std::string> names;
  };

  bool scalar(std::string text) {
    return add({.kind = Yaml::Kind::kScalar, .where = {file_}, .text = std::move(text)});
  }

  bool open(Yaml::Kind kind) {
    if (open_.size() == kMaxDepth) fail(Code::kBadJson, file_, "nested deeper than", kMaxDepth);
    open_.push_back({{.kind = kind, .where = {file_}}, {}});
    return true;
  }

  bool close() {
    Yaml value = std::move(open_.back().value);
    open_.pop_back();
    return add(std::move(value));
  }

  bool add(Yaml value) {
    if (++values_ > kMaxValues) fail(Code::kBadJson, file_, "more values than", kMaxValues);
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().value.kind == Yaml::Kind::kList) {
      open_.back().value.items.push_back(std::move(value));
    } else {
      open_.back().value.fields.back().value = std::move(value);
    }
    return true;
  }

  const std::string& file_;
  std::vector<Open> open_;
  Yaml root_;
  int values_ = 0;
};

}  // namespace

Yaml parse_json(const std::string& text, const std::string& file) {
  Builder builder(file);
  nlohmann::json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace troupe
