// Text of others, fit to be shown: what a terminal would obey is taken out.
#pragma once

#include <string>
#include <string_view>

#include "troupe/core/text/utf8.h"

namespace troupe {

// Each control character but tab and line end, those of Unicode's second block (U+0080 to U+009F,
// which many terminals obey as they do ESC) and bytes that are no UTF-8 become U+FFFD.
inline std::string plain_text(std::string_view text) {
  std::string repaired;
  if (!is_utf8(text)) text = repaired = repaired_utf8(text);
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_at(text, at);
    const bool obeyed =
        (c.code < 0x20 && c.code != '\t' && c.code != '\n') || (c.code >= 0x7F && c.code < 0xA0);
    out += obeyed ? kReplacement : text.substr(at, c.bytes);
    at += c.bytes;
  }
  return out;
}

}  // namespace troupe
