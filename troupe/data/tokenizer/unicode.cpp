// The one file that knows ICU.
#include "troupe/data/tokenizer/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/text/utf8.h"
#include "troupe/data/tokenizer/unicode_ranges.h"

namespace troupe {
namespace {

constexpr char32_t kCodePoints = 0x110000;
// The order of the bits; the groups of unicode.h are in it side by side.
constexpr std::array<std::string_view, 30> kNames = {
    "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe",
    "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co", "Cn"};

uint8_t bit_of(std::string_view name) {
  return static_cast<uint8_t>(std::find(kNames.begin(), kNames.end(), name) - kNames.begin());
}

// ICU's numbers of the categories, as ours.
std::array<uint8_t, U_CHAR_CATEGORY_COUNT> bits_of_icu() {
  std::array<uint8_t, U_CHAR_CATEGORY_COUNT> out{};
  constexpr std::array<std::string_view, U_CHAR_CATEGORY_COUNT> kIcu = {
      "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Me", "Mc", "Nd", "Nl", "No", "Zs", "Zl", "Zp",
      "Cc", "Cf", "Co", "Cs", "Pd", "Ps", "Pe", "Pc", "Po", "Sm", "Sc", "Sk", "So", "Pi", "Pf"};
  for (size_t i = 0; i < kIcu.size(); ++i) out[i] = bit_of(kIcu[i]);
  return out;
}

std::vector<uint8_t> make_category_table() {
  const auto icu = bits_of_icu();
  std::vector<uint8_t> out(kCodePoints);
  for (char32_t c = 0; c < kCodePoints; ++c) {
    out[c] = icu[static_cast<size_t>(u_charType(static_cast<UChar32>(c)))];
  }
  for (const NewRange& range : kNewRanges) {
    for (char32_t c = range.first; c <= range.last; ++c) out[c] = bit_of(range.category);
  }
  return out;
}

// The lower case of letters that are younger than ICU 72's Unicode 15: first, last, first's.
constexpr std::array<std::array<char32_t, 3>, 10> kNewLower = {{{0x1C89, 0x1C89, 0x1C8A},
                                                                {0xA7CB, 0xA7CB, 0x264},
                                                                {0xA7CC, 0xA7CC, 0xA7CD},
                                                                {0xA7CE, 0xA7CE, 0xA7CF},
                                                                {0xA7D2, 0xA7D2, 0xA7D3},
                                                                {0xA7D4, 0xA7D4, 0xA7D5},
                                                                {0xA7DA, 0xA7DA, 0xA7DB},
                                                                {0xA7DC, 0xA7DC, 0x19B},
                                                                {0x10D50, 0x10D65, 0x10D70},
                                                                {0x16EA0, 0x16EB8, 0x16EBB}}};

// Bytes of the prefix that no normal form of this kind changes, whatever follows.
size_t inert_prefix(NormalForm form, std::string_view text) {
  // Composition touches nothing below U+0300, whose first byte is CC.
  const unsigned char limit = form == NormalForm::kNfc ? 0xCC : 0x80;
  const auto is_inert = [&](char c) { return static_cast<unsigned char>(c) < limit; };
  const auto end = std::find_if_not(text.begin(), text.end(), is_inert);
  return static_cast<size_t>(end - text.begin());
}

// ICU's normal form as of Unicode 9: the characters that came later are left as they are.
class Form {
 public:
  explicit Form(const icu::Normalizer2* (*instance)(UErrorCode&)) {
    UErrorCode error = U_ZERO_ERROR;
    const icu::Normalizer2* all = instance(error);
    known_.applyPattern(UNICODE_STRING_SIMPLE("[:age=9.0:]"), error);
    TROUPE_CHECK(U_SUCCESS(error) && all, "ICU has no normal forms:", u_errorName(error));
    known_.freeze();
    form_ = std::make_unique<icu::FilteredNormalizer2>(*all, known_);
  }
  const icu::Normalizer2& get() const { return *form_; }

 private:
  icu::UnicodeSet known_;
  std::unique_ptr<icu::FilteredNormalizer2> form_;
};

const icu::Normalizer2& normalizer(NormalForm form) {
  using icu::Normalizer2;
  switch (form) {  // each is made once, and constant
    case NormalForm::kNfc: {
      static const Form nfc(Normalizer2::getNFCInstance);
      return nfc.get();
    }
    case NormalForm::kNfd: {
      static const Form nfd(Normalizer2::getNFDInstance);
      return nfd.get();
    }
    case NormalForm::kNfkc: {
      static const Form nfkc(Normalizer2::getNFKCInstance);
      return nfkc.get();
    }
    default: {
      static const Form nfkd(Normalizer2::getNFKDInstance);
      return nfkd.get();
    }
  }
}

}  // namespace

CategoryBits category_bits(std::string_view name) {
  CategoryBits out = 0;
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i] || name == kNames[i].substr(0, 1)) out |= CategoryBits{1} << i;
  }
  return out;
}

const uint8_t* category_table() {
  static const std::vector<uint8_t> table = make_category_table();  // constant, 1 MB, made in 5 ms
  return table.data();
}

bool is_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r');
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_word(char32_t c) {
  constexpr CategoryBits kDigits = 3 << 8, kConnector = 1 << 11;  // Nd Nl, Pc
  if ((category_of(c) & (kLetter | kMark | kDigits | kConnector)) != 0) return true;
  return c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
         (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) ||
         (c >= 0x1F170 && c <= 0x1F189);
}

bool is_accent(char32_t c) {
  UVersionInfo age{};
  u_charAge(static_cast<UChar32>(c), age);
  const bool known = age[0] > 0 && (age[0] < 9 || (age[0] == 9 && age[1] == 0));
  return c == 0x1CF2 || c == 0x1CF3 || (known && (category_of(c) & kMark) != 0);
}

void append_lower(std::string& out, char32_t c) {
  constexpr char32_t kDottedCapitalI = 0x130;
  if (c == kDottedCapitalI) {  // the one whose lower case is two characters
    out += "i\xCC\x87";
    return;
  }
  for (const auto& [first, last, lower] : kNewLower) {
    if (c >= first && c <= last) return append_utf8(out, c - first + lower);
  }
  append_utf8(out, static_cast<char32_t>(u_tolower(static_cast<UChar32>(c))));
}

bool normalize(NormalForm form, std::string_view text, std::string& out) {
  if (inert_prefix(form, text) == text.size()) return false;
  const icu::Normalizer2& to = normalizer(form);
  const icu::StringPiece piece(text.data(), static_cast<int32_t>(text.size()));
  UErrorCode error = U_ZERO_ERROR;
  if (to.isNormalizedUTF8(piece, error) && U_SUCCESS(error)) return false;
  std::string result;
  result.reserve(text.size());
  icu::StringByteSink<std::string> sink(&result);
  error = U_ZERO_ERROR;
  to.normalizeUTF8(0, piece, sink, nullptr, error);
  TROUPE_CHECK(U_SUCCESS(error), "ICU cannot normalize:", u_errorName(error));
  out = std::move(result);
  return true;
}

std::string newer_characters(CategoryBits categories) {
  std::string out;
  char text[40];
  for (const NewRange& range : kNewRanges) {
    if ((category_bits(range.category) & categories) == 0) continue;
    std::snprintf(text, sizeof(text), "\\x{%X}-\\x{%X}", static_cast<unsigned>(range.first),
                  static_cast<unsigned>(range.last));
    out += text;
  }
  return out;
}

}  // namespace troupe
