// What Unicode says of characters, and its normal forms.
//
// Each as Hugging Face's tokenizers have it, whose parts know different versions of Unicode: the
// categories are of Unicode 16, the normal forms and accents of 9, lower case is of 17.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace troupe {

// General categories as bits, to be joined: kLetter has those of Lu, Ll, Lt, Lm and Lo.
using CategoryBits = uint32_t;
CategoryBits category_bits(std::string_view name);  // "L", "Lu", "P", ...; 0: no such name

// One byte a code point (0x110000 of them): the number of its category's bit.
const uint8_t* category_table();

inline CategoryBits category_of(char32_t c) {
  return CategoryBits{1} << category_table()[c];
}

inline constexpr CategoryBits kLetter = 0x1F << 0;        // Lu Ll Lt Lm Lo
inline constexpr CategoryBits kMark = 0x07 << 5;          // Mn Mc Me
inline constexpr CategoryBits kNumber = 0x07 << 8;        // Nd Nl No
inline constexpr CategoryBits kPunctuation = 0x7F << 11;  // Pc Pd Ps Pe Pi Pf Po
inline constexpr CategoryBits kSymbol = 0x0F << 18;       // Sm Sc Sk So

bool is_space(char32_t c);   // White_Space
bool is_word(char32_t c);    // Rust's \w: letters, marks, decimal digits, connectors, joiners
bool is_accent(char32_t c);  // a mark; it is what StripAccents takes away
void append_lower(std::string& out, char32_t c);

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

// False: `text`, which must be valid UTF-8, is in that form already, and `out` is as it was.
bool normalize(NormalForm form, std::string_view text, std::string& out);

// The characters that were assigned after Unicode 14 (what PCRE2 10.42 knows), of these categories,
// as ranges for a pattern's brackets: "\x{1C89}\x{A7CB}-\x{A7CD}".
std::string newer_characters(CategoryBits categories);

}  // namespace troupe
