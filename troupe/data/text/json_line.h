// One line of JSON, read as it comes: no tree, no copy of what is not asked for. As lenient with
// text as Python is: bytes of a string pass as they are, whether UTF-8 or not, and half a surrogate
// pair becomes U+FFFD.
//   JsonLine line(text);
//   line.object([&](std::string_view key) { key == "text" ? out = line.string() : line.skip(); });
//   line.end();
// Whatever is malformed throws JsonFault with a byte offset; so does nesting over 64.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "troupe/core/check.h"

namespace troupe {

struct JsonFault {
  size_t offset = 0;
  std::string what;
};

class JsonLine {
 public:
  explicit JsonLine(std::string_view text) : text_(text) {}

  enum class Kind { kObject, kArray, kString, kOther };
  Kind kind();     // of the value that comes
  bool is_null();  // whether it is null

  // f(key) must read or skip the value.
  template <class F>
  void object(F&& f) {
    open('{');
    for (bool first = true; !close('}', first); first = false) {
      const std::string key = string();
      expect(':');
      f(std::string_view(key));
    }
  }
  // f() must read or skip the item.
  template <class F>
  void array(F&& f) {
    open('[');
    for (bool first = true; !close(']', first); first = false) f();
  }
  // An object, and nothing behind it: f() reads the value under `key`, the last of several.
  template <class F>
  void only(const std::string& key, F&& f) {
    bool found = false;
    if (kind() != Kind::kObject) fail("is not a JSON object");
    object([&](std::string_view name) {
      if (name != key) return skip();
      found = true;
      f();
    });
    end();
    if (!found) fail("has no \"" + key + "\"");
  }
  std::string string();
  std::string string_of(std::string_view name);  // what is under `name` must be a string
  void skip();
  void end();      // nothing but white space is left
  size_t place();  // where the value begins that comes
  // What is written from there to where the last value that was read ends.
  std::string_view since(size_t place) const { return text_.substr(place, at_ - place); }

  [[noreturn]] void fail(const std::string& what) const { throw JsonFault{at_, what}; }

 private:
  void space();
  char peek();  // the next character that is no white space; 0: the end
  void expect(char c);
  void open(char c);
  bool close(char c, bool first);  // at the end of a list; else past the comma before the next item
  void escape(std::string& out);
  unsigned hex4();
  void literal();

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace troupe
