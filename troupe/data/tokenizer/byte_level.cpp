#include "troupe/data/tokenizer/byte_level.h"

#include <array>

#include "troupe/core/text/utf8.h"

namespace troupe {
namespace {

constexpr bool prints(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
}

constexpr auto kCharacterOf = [] {
  std::array<char32_t, 256> out{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    out[static_cast<size_t>(byte)] = prints(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return out;
}();

constexpr auto kByteOf = [] {
  std::array<int, 0x100 + 68> out{};
  for (int& byte : out) byte = -1;
  for (size_t byte = 0; byte < 256; ++byte) out[kCharacterOf[byte]] = static_cast<int>(byte);
  return out;
}();

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) append_utf8(out, kCharacterOf[static_cast<unsigned char>(c)]);
  return out;
}

bool from_byte_alphabet(std::string_view text, std::string& bytes) {
  bytes.clear();
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_at(text, at);
    if (c.code >= kByteOf.size() || kByteOf[c.code] < 0) return false;
    bytes.push_back(static_cast<char>(kByteOf[c.code]));
    at += c.bytes;
  }
  return true;
}

}  // namespace troupe
