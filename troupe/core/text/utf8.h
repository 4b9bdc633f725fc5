// Finds invalid UTF-8, repairs it, and iterates over valid characters.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace troupe {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Bytes of the longest prefix that is valid: no surrogates, no overlong forms, none past U+10FFFF.
size_t valid_utf8_prefix(std::string_view text);
inline bool is_utf8(std::string_view text) {
  return valid_utf8_prefix(text) == text.size();
}

// Replaces each maximal part of an invalid sequence by one U+FFFD, as Rust, Python and browsers
// do.
std::string repaired_utf8(std::string_view text);

// The text behind a byte order mark, which a file may begin with.
inline std::string_view without_byte_order_mark(std::string_view text) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  return text.starts_with(kMark) ? text.substr(kMark.size()) : text;
}

// How many bytes at the end begin a character that more bytes could complete: 0 to 3.
size_t incomplete_utf8_tail(std::string_view text);

void append_utf8(std::string& out, char32_t c);

struct Utf8Char {
  char32_t code;
  size_t bytes;
};

// The character at `at` of valid text.
inline Utf8Char utf8_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
  const auto tail = [&](size_t i) { return static_cast<char32_t>(byte(i) & 0x3F); };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  if (first < 0xE0) return {(first & 0x1F) << 6 | tail(1), 2};
  if (first < 0xF0) return {(first & 0x0F) << 12 | tail(1) << 6 | tail(2), 3};
  return {(first & 0x07) << 18 | tail(1) << 12 | tail(2) << 6 | tail(3), 4};
}

// Where the character before `at` begins; `at` > 0.
inline size_t utf8_before(std::string_view text, size_t at) {
  do {
    --at;
  } while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

}  // namespace troupe
