#include "troupe/core/config/toml.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <vector>

#include "troupe/core/check.h"

namespace troupe {
namespace {

constexpr size_t kLongest = size_t{4} << 20;
constexpr int kDeepest = 64;
constexpr int kMostValues = 10'000;  // tables among them: a name is looked for among its table's

class TomlReader {
 public:
  TomlReader(const std::string& text, const std::string& file) : text_(text), file_(file) {}

  Yaml read() {
    if (text_.size() > kLongest) syntax("more than 4 MiB");
    Yaml root = map();
    Yaml* table = &root;
    for (skip_lines(); !at_end(); skip_lines()) {
      if (peek() == '[') {
        table = &open_table(root);
      } else {
        read_pair(*table);
      }
      skip_blanks();
      if (!at_end() && peek() != '\n') syntax("one key or table a line");
    }
    return root;
  }

 private:
  [[noreturn]] void syntax(const std::string& what, Code code = Code::kBadSyntax) const {
    throw Error(to_text(here()) + ": " + to_text(code) + ' ' + what, code);
  }
  Where here() const { return {file_, line_}; }
  Yaml map() const {
    Yaml out;
    out.kind = Yaml::Kind::kMap;
    out.where = here();
    return out;
  }

  bool at_end() const { return at_ >= text_.size(); }
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  char next() {
    if (at_end()) syntax("the text ends within a value");
    line_ += text_[at_] == '\n';
    return text_[at_++];
  }
  void expect(char c) {
    if (at_end() || peek() != c) syntax(std::string("'") + c + "' is expected");
    next();
  }
  void skip_blanks() {  // and a comment
    while (peek() == ' ' || peek() == '\t' || peek() == '\r') next();
    if (peek() != '#') return;
    while (!at_end() && peek() != '\n') next();
  }
  void skip_lines() {
    for (skip_blanks(); peek() == '\n'; skip_blanks()) next();
  }

  static bool bare(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
  }
  std::string read_name() {
    if (peek() == '"' || peek() == '\'') return read_string();
    std::string out;
    while (bare(peek())) out += next();
    if (out.empty()) syntax("a key is expected");
    return out;
  }
  std::vector<std::string> read_path() {
    std::vector<std::string> out;
    for (;;) {
      skip_blanks();
      out.push_back(read_name());
      if (out.size() > kDeepest) syntax("a key of more than 64 parts");
      skip_blanks();
      if (peek() != '.') return out;
      next();
    }
  }

  // The table under that name, made where it is not.
  Yaml& inner(Yaml& table, const std::string& name) {
    for (Yaml::Field& field : table.fields) {
      if (field.name != name) continue;
      if (field.value.kind == Yaml::Kind::kMap) return field.value;
      syntax(name + " is a value, not a table", Code::kWrittenTwice);
    }
    count_value();
    table.fields.push_back({name, here(), map()});
    return table.fields.back().value;
  }

  Yaml& open_table(Yaml& root) {
    expect('[');
    if (peek() == '[') syntax("arrays of tables are not read");
    Yaml* out = &root;
    for (const std::string& name : read_path()) out = &inner(*out, name);
    expect(']');
    return *out;
  }

  void read_pair(Yaml& table) {
    const std::vector<std::string> path = read_path();
    Yaml* into = &table;
    for (size_t i = 0; i + 1 < path.size(); ++i) into = &inner(*into, path[i]);
    const auto same = [&](const Yaml::Field& field) { return field.name == path.back(); };
    if (std::ranges::any_of(into->fields, same)) {
      syntax(path.back() + " is written twice", Code::kWrittenTwice);
    }
    const Where where = here();
    expect('=');
    skip_blanks();
    into->fields.push_back({path.back(), where, read_value()});
  }

  void count_value() {
    if (++values_ > kMostValues) syntax("more than 10000 values");
  }

  Yaml read_value() {
    count_value();
    if (++depth_ > kDeepest) syntax("values are nested more than 64 deep");
    Yaml out;
    out.where = here();
    if (peek() == '[') {
      out.kind = Yaml::Kind::kList;
      read_array(out);
    } else if (peek() == '{') {
      out.kind = Yaml::Kind::kMap;
      read_inline(out);
    } else {
      out.kind = Yaml::Kind::kScalar;
      out.text = peek() == '"' || peek() == '\'' ? read_string() : read_plain();
    }
    --depth_;
    return out;
  }

  void read_array(Yaml& out) {
    expect('[');
    for (skip_lines(); peek() != ']'; skip_lines()) {
      out.items.push_back(read_value());
      skip_lines();
      if (peek() != ']') expect(',');
    }
    next();
  }

  void read_inline(Yaml& out) {
    expect('{');
    for (skip_blanks(); peek() != '}'; skip_blanks()) {
      read_pair(out);
      skip_blanks();
      if (peek() != '}') expect(',');
    }
    next();
  }

  // A number, a boolean, a date.
  std::string read_plain() {
    std::string out;
    while (bare(peek()) || peek() == '.' || peek() == '+' || peek() == ':') out += next();
    if (out.empty()) syntax("a value is expected");
    const bool number = std::isdigit(static_cast<unsigned char>(out.back())) != 0;
    if (number) std::erase(out, '_');
    return out;
  }

  std::string read_string() {
    const char quote = next();
    const bool literal = quote == '\'', lines = peek() == quote && peek(1) == quote;
    if (lines) {
      next(), next();
      if (peek() == '\n') next();
    }
    std::string out;
    for (;;) {
      if (at_end()) syntax("a string has no end");
      if (peek() == quote && (!lines || (peek(1) == quote && peek(2) == quote))) break;
      if (peek() == '\n' && !lines) syntax("a string has no end on its line");
      const char c = next();
      if (c == '\\' && !literal) {
        read_escape(out);
      } else {
        out += c;
      }
    }
    for (int i = 0; i < (lines ? 3 : 1); ++i) next();
    return out;
  }

  void read_escape(std::string& out) {
    constexpr std::string_view kNames = "btnfr\"\\", kValues = "\b\t\n\f\r\"\\";
    const char c = next();
    if (c == '\n') {  // the end of a line within three quotes
      while (std::isspace(static_cast<unsigned char>(peek())) != 0) next();
      return;
    }
    const auto found = kNames.find(c);
    if (found == std::string_view::npos)
      syntax(std::string("\\") + c + " is no escape that is read");
    out += kValues[found];
  }

  const std::string& text_;
  const std::string& file_;
  size_t at_ = 0;
  int line_ = 1, depth_ = 0, values_ = 0;
};

}  // namespace

Yaml parse_toml(const std::string& text, const std::string& file) {
  return TomlReader(text, file).read();
}

}  // namespace troupe
