#include "troupe/core/text/text.h"

#include "troupe/core/text/one_line.h"

namespace troupe {

std::string to_text(const std::string& value) {
  std::string quoted;
  for (const char c : value) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return '"' + escaped_line_ends(quoted) + '"';
}

Expectation expectation(std::string_view text, const bool&) {
  const std::string word = normalized(text);
  const bool yes = word == "yes" || word == "on" || word == "true" || word == "1";
  const bool no = word == "no" || word == "off" || word == "false" || word == "0";
  return {"true or false", yes ? "true" : no ? "false" : ""};
}

}  // namespace troupe
