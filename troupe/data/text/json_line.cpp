#include "troupe/data/text/json_line.h"

#include <charconv>

namespace troupe {
namespace {

constexpr int kDeepest = 64;

void append_utf8(std::string& out, unsigned c) {
  const auto put = [&](unsigned byte) { out += static_cast<char>(byte); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

}  // namespace

void JsonLine::space() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r' || text_[at_] == '\n')) {
    ++at_;
  }
}

char JsonLine::peek() {
  space();
  return at_ < text_.size() ? text_[at_] : '\0';
}

void JsonLine::expect(char c) {
  if (peek() != c) fail(std::string("expected ") + c);
  ++at_;
}

void JsonLine::open(char c) {
  expect(c);
  if (++depth_ > kDeepest) fail("nesting over 64");
}

bool JsonLine::close(char c, bool first) {
  if (peek() == c) {
    ++at_;
    --depth_;
    return true;
  }
  if (!first) expect(',');
  return false;
}

JsonLine::Kind JsonLine::kind() {
  switch (peek()) {
    case '{': return Kind::kObject;
    case '[': return Kind::kArray;
    case '"': return Kind::kString;
    default: return Kind::kOther;
  }
}

bool JsonLine::is_null() {
  space();
  return text_.substr(at_, 4) == "null";
}

std::string JsonLine::string() {
  expect('"');
  std::string out;
  while (true) {
    const size_t stop = text_.find_first_of("\"\\", at_);
    if (stop == std::string_view::npos) fail("a string without its end");
    out.append(text_, at_, stop - at_);
    at_ = stop + 1;
    if (text_[stop] == '"') return out;
    escape(out);
  }
}

std::string JsonLine::string_of(std::string_view name) {
  if (kind() != Kind::kString) fail("\"" + std::string(name) + "\" is not a string");
  return string();
}

unsigned JsonLine::hex4() {
  unsigned value = 0;
  const std::string_view digits = text_.substr(at_, 4);
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (error != std::errc() || end != digits.data() + 4) fail("expected four hex digits after \\u");
  at_ += 4;
  return value;
}

void JsonLine::escape(std::string& out) {
  const char c = at_ < text_.size() ? text_[at_] : '\0';
  ++at_;
  switch (c) {
    case '"':
    case '\\':
    case '/': out += c; return;
    case 'b': out += '\b'; return;
    case 'f': out += '\f'; return;
    case 'n': out += '\n'; return;
    case 'r': out += '\r'; return;
    case 't': out += '\t'; return;
    case 'u': break;
    default: --at_; fail("an escape that JSON does not have");
  }
  unsigned code = hex4();
  if (0xD800 <= code && code < 0xDC00 && text_.substr(at_, 2) == "\\u") {
    const size_t back = at_;
    at_ += 2;
    const unsigned low = hex4();
    if (0xDC00 <= low && low < 0xE000) {
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else {
      at_ = back;  // Not its other half: read by itself next.
    }
  }
  append_utf8(out, 0xD800 <= code && code < 0xE000 ? 0xFFFD : code);
}

void JsonLine::literal() {
  const size_t begin = at_;
  while (at_ < text_.size() &&
         std::string_view(",]} \t\r\n").find(text_[at_]) == std::string_view::npos) {
    ++at_;
  }
  const std::string_view word = text_.substr(begin, at_ - begin);
  double number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  const bool is_number =
      !word.empty() && error != std::errc::invalid_argument && end == word.data() + word.size();
  if (is_number || word == "true" || word == "false" || word == "null" || word == "NaN" ||
      word == "Infinity" || word == "-Infinity") {
    return;
  }
  at_ = begin;
  fail("expected a value");
}

void JsonLine::skip() {
  switch (kind()) {
    case Kind::kObject: return object([&](std::string_view) { skip(); });
    case Kind::kArray: return array([&] { skip(); });
    case Kind::kString: static_cast<void>(string()); return;
    case Kind::kOther: return literal();
  }
}

size_t JsonLine::place() {
  space();
  return at_;
}

void JsonLine::end() {
  space();
  if (at_ != text_.size()) fail("more after the end of the value");
}

}  // namespace troupe
