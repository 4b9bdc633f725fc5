#include "troupe/core/text/utf8.h"

#include <cstdint>
#include <cstring>

namespace troupe {
namespace {

// The bytes that may stand second after a lead byte, and how many follow in all.
struct Lead {
  int more = -1;  // -1: no lead byte
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
};

Lead lead_of(unsigned char c) {
  if (c >= 0xC2 && c <= 0xDF) return {1};
  if (c == 0xE0) return {2, 0xA0, 0xBF};
  if (c == 0xED) return {2, 0x80, 0x9F};  // past it are the surrogates
  if (c >= 0xE1 && c <= 0xEF) return {2};
  if (c == 0xF0) return {3, 0x90, 0xBF};
  if (c == 0xF4) return {3, 0x80, 0x8F};
  if (c >= 0xF1 && c <= 0xF3) return {3};
  return {};
}

struct Sequence {
  size_t bytes;  // of the character, or of the part that cannot go on: at least 1
  bool complete;
  bool cut;  // the text ended first
};

Sequence sequence_at(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(at) < 0x80) return {1, true, false};
  const Lead lead = lead_of(byte(at));
  if (lead.more < 0) return {1, false, false};
  for (int i = 1; i <= lead.more; ++i) {
    const size_t next = at + static_cast<size_t>(i);
    if (next == text.size()) return {static_cast<size_t>(i), false, true};
    const unsigned char low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    if (byte(next) < low || byte(next) > high) return {static_cast<size_t>(i), false, false};
  }
  return {static_cast<size_t>(lead.more) + 1, true, false};
}

size_t ascii_prefix(std::string_view text, size_t at) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  uint64_t word = 0;
  for (; at + 8 <= text.size(); at += 8) {
    std::memcpy(&word, text.data() + at, 8);
    if ((word & kHighBits) != 0) break;
  }
  while (at < text.size() && static_cast<unsigned char>(text[at]) < 0x80) ++at;
  return at;
}

}  // namespace

size_t valid_utf8_prefix(std::string_view text) {
  size_t at = 0;
  while ((at = ascii_prefix(text, at)) < text.size()) {
    // In text of another script one such character follows the other.
    while (at < text.size() && static_cast<unsigned char>(text[at]) >= 0x80) {
      const Sequence s = sequence_at(text, at);
      if (!s.complete) return at;
      at += s.bytes;
    }
  }
  return at;
}

std::string repaired_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (true) {
    const size_t good = valid_utf8_prefix(text);
    out.append(text.substr(0, good));
    if (good == text.size()) return out;
    out.append(kReplacement);
    text.remove_prefix(good + sequence_at(text, good).bytes);
  }
}

size_t incomplete_utf8_tail(std::string_view text) {
  for (size_t n = 1; n <= 3 && n <= text.size(); ++n) {
    const Sequence s = sequence_at(text, text.size() - n);
    if (s.cut && s.bytes == n) return n;
  }
  return 0;
}

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t bits) { out.push_back(static_cast<char>(bits)); };
  if (c < 0x80) return put(c);
  if (c < 0x800) {
    put(0xC0 | c >> 6);
  } else {
    if (c < 0x10000) {
      put(0xE0 | c >> 12);
    } else {
      put(0xF0 | c >> 18);
      put(0x80 | (c >> 12 & 0x3F));
    }
    put(0x80 | (c >> 6 & 0x3F));
  }
  put(0x80 | (c & 0x3F));
}

}  // namespace troupe
