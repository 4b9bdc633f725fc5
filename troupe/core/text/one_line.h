// Text of others within one line, whoever splits it: a comment, or a value in quotes.
#pragma once

#include <string>
#include <string_view>

#include "troupe/core/text/utf8.h"

namespace troupe {

// Control characters (U+0000 to U+001F, U+007F to U+009F) and U+2028 and U+2029 as JSON and YAML
// write them in quotes, "\u2028": YAML 1.1 and Python end a line at U+0085, U+2028 and U+2029 too.
// All other bytes stay.
inline std::string escaped_line_ends(std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  const auto escape = [&](std::string_view page, unsigned char low) {
    out.append("\\u").append(page);
    out += kHex[low >> 4], out += kHex[low & 15];
  };
  for (size_t at = 0; at < text.size(); ++at) {
    const std::string_view rest = text.substr(at);
    const auto byte = static_cast<unsigned char>(rest[0]);
    const auto next = static_cast<unsigned char>(rest.size() > 1 ? rest[1] : '\0');
    if (byte < 0x20 || byte == 0x7F) {
      escape("00", byte);
    } else if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {
      escape("00", next), at += 1;
    } else if (rest.starts_with("\xE2\x80\xA8") || rest.starts_with("\xE2\x80\xA9")) {
      escape("20", rest[2] == '\xA8' ? 0x28 : 0x29), at += 2;
    } else {
      out += rest[0];
    }
  }
  return out;
}

// The same, and what is no UTF-8 as U+FFFD.
inline std::string one_line(std::string_view text) {
  return escaped_line_ends(is_utf8(text) ? std::string(text) : repaired_utf8(text));
}

}  // namespace troupe
