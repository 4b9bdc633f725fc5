#include "troupe/core/text/text.h"

namespace troupe {

std::string to_text(const std::string& value) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\', out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\u00", out += kHex[byte >> 4], out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + '"';
}

Expectation expectation(std::string_view text, const bool&) {
  const std::string word = normalized(text);
  const bool yes = word == "yes" || word == "on" || word == "true" || word == "1";
  const bool no = word == "no" || word == "off" || word == "false" || word == "0";
  return {"true or false", yes ? "true" : no ? "false" : ""};
}

}  // namespace troupe
