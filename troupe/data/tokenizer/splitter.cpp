#include "troupe/data/tokenizer/splitter.h"

#include <algorithm>
#include <cstdint>

#include "troupe/core/text/utf8.h"
#include "troupe/data/tokenizer/patterns.h"
#include "troupe/data/tokenizer/unicode.h"

namespace troupe {
namespace {

enum Kind : uint8_t {
  kIsLetter = 1 << 0,
  kIsNumber = 1 << 1,
  kIsSpace = 1 << 2,
  kIsLineEnd = 1 << 3,  // \r and \n, which are spaces too
  kIsMark = 1 << 4,
  kIsUpper = 1 << 5,  // may stand in the first half of a word: Lu Lt Lm Lo M
  kIsLower = 1 << 6,  // in the second: Ll Lm Lo M
};

std::vector<uint8_t> make_kinds() {
  const CategoryBits both = category_bits("Lm") | category_bits("Lo") | kMark;
  const CategoryBits upper = category_bits("Lu") | category_bits("Lt") | both;
  const CategoryBits lower = category_bits("Ll") | both;
  std::vector<uint8_t> out(0x110000);
  for (char32_t c = 0; c < out.size(); ++c) {
    const CategoryBits bits = category_of(c);
    out[c] = static_cast<uint8_t>(
        ((bits & kLetter) != 0 ? kIsLetter : 0) | ((bits & kNumber) != 0 ? kIsNumber : 0) |
        ((bits & kMark) != 0 ? kIsMark : 0) | ((bits & upper) != 0 ? kIsUpper : 0) |
        ((bits & lower) != 0 ? kIsLower : 0) | (is_space(c) ? kIsSpace : 0) |
        (c == '\r' || c == '\n' ? kIsLineEnd : 0));
  }
  return out;
}

const uint8_t* kinds() {
  static const std::vector<uint8_t> table = make_kinds();  // constant
  return table.data();
}

// What the families' patterns differ in.
struct Rules {
  uint8_t letters = kIsLetter;  // what words are made of
  int digits = 3;               // of a number, at most; 0: any
  bool slash = false;           // symbols take slashes behind them along, as they do line ends
  bool last_whole = false;      // spaces at the end of a text are one piece, line ends or not
};

// A text, the place up to which it is cut, and what stands there.
class Scanner {
 public:
  Scanner(std::string_view text, const Cut& cut, std::vector<Cut>& out)
      : text_(text.substr(0, cut.end)), kinds_(kinds()), at_(cut.begin), out_(out) {}

  bool done() const { return at_ == text_.size(); }
  size_t at() const { return at_; }
  void piece(size_t end) {
    out_.push_back({at_, end});
    at_ = end;
  }

  // 0 past the end, as for a symbol: those who ask it next to a symbol ask for the end too.
  uint8_t kind(size_t i) const {
    if (i == text_.size()) return 0;
    const auto c = static_cast<unsigned char>(text_[i]);
    return kinds_[c < 0x80 ? c : utf8_at(text_, i).code];
  }
  char byte(size_t i) const { return i < text_.size() ? text_[i] : '\0'; }
  bool inside(size_t i) const { return i < text_.size(); }
  size_t after(size_t i) const {
    return i + (static_cast<unsigned char>(text_[i]) < 0x80 ? 1 : utf8_at(text_, i).bytes);
  }

  // Where the run of characters of any kind in `mask` ends, at most `most` of them (0: any number).
  size_t run(size_t i, uint8_t mask, int most = 0) const {
    for (int n = 0; inside(i) && (kind(i) & mask) != 0 && (most == 0 || n < most); ++n)
      i = after(i);
    return i;
  }
  // The same, of none of the kinds.
  size_t run_without(size_t i, uint8_t mask) const {
    while (inside(i) && (kind(i) & mask) == 0) i = after(i);
    return i;
  }

  // Behind 's 't 'm 'd 're 've 'll at i, or i.
  size_t contraction(size_t i, bool any_case) const {
    if (byte(i) != '\'') return i;
    const auto letter = [&](size_t k) {
      const char c = byte(i + k);
      return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    };
    const char first = letter(1), second = letter(2);
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return i + 2;
    if ((first == 'r' || first == 'v') && second == 'e') return i + 3;
    if (first == 'l' && second == 'l') return i + 3;
    if (any_case && byte(i + 1) == '\xC5' && byte(i + 2) == '\xBF') return i + 3;  // the long s
    return i;
  }

  // \s+(?!\S)|\s+, and before them \s*[\r\n]+ where line ends count.
  void space(bool line_ends, bool last_whole = false) {
    const size_t end = run(at_, kIsSpace);
    if (last_whole && end == text_.size()) return piece(end);
    size_t last = at_, cut = at_;  // the last space; behind the last line end
    for (size_t i = at_; i < end; i = after(i)) {
      last = i;
      if (line_ends && (kind(i) & kIsLineEnd) != 0) cut = after(i);
    }
    if (cut > at_) return piece(cut);
    // The last space belongs to what follows.
    piece(end == text_.size() || last == at_ ? end : last);
  }

 private:
  const std::string_view text_;
  const uint8_t* const kinds_;
  size_t at_;
  std::vector<Cut>& out_;
};

void scan_gpt2(std::string_view text, const Cut& cut, std::vector<Cut>& out) {
  constexpr uint8_t kNoSymbol = kIsLetter | kIsNumber | kIsSpace;
  Scanner s(text, cut, out);
  while (!s.done()) {
    if (const size_t end = s.contraction(s.at(), false); end > s.at()) {
      s.piece(end);
      continue;
    }
    const size_t word = s.byte(s.at()) == ' ' && s.inside(s.at() + 1) ? s.at() + 1 : s.at();
    const uint8_t kind = s.kind(word);
    if ((kind & kIsSpace) != 0) {
      s.space(false);
    } else if ((kind & (kIsLetter | kIsNumber)) != 0) {
      s.piece(s.run(word, kind & (kIsLetter | kIsNumber)));
    } else {
      s.piece(s.run_without(word, kNoSymbol));
    }
  }
}

// ` ?[^\s\p{L}\p{N}]+[\r\n]*`, and then numbers and spaces: what the later patterns share.
void scan_rest(Scanner& s, const Rules& rules) {
  const uint8_t no_symbol = rules.letters | kIsNumber | kIsSpace;
  const uint8_t kind = s.kind(s.at());
  if ((kind & kIsNumber) != 0) return s.piece(s.run(s.at(), kIsNumber, rules.digits));
  const size_t symbol = s.byte(s.at()) == ' ' ? s.at() + 1 : s.at();
  if (!s.inside(symbol) || (s.kind(symbol) & no_symbol) != 0)
    return s.space(true, rules.last_whole);
  size_t end = s.run_without(symbol, no_symbol);
  while (s.inside(end) &&
         ((s.kind(end) & kIsLineEnd) != 0 || (rules.slash && s.byte(end) == '/'))) {
    ++end;
  }
  s.piece(end);
}

// `[^\r\n\p{L}\p{N}]?` before a word: where the word would begin.
size_t behind_prefix(const Scanner& s) {
  constexpr uint8_t kNoPrefix = kIsLetter | kIsNumber | kIsLineEnd;
  return (s.kind(s.at()) & kNoPrefix) != 0 ? s.at() : s.after(s.at());
}

template <Rules kRules>
void scan_cl100k(std::string_view text, const Cut& cut, std::vector<Cut>& out) {
  Scanner s(text, cut, out);
  while (!s.done()) {
    if (const size_t end = s.contraction(s.at(), true); end > s.at()) {
      s.piece(end);
      continue;
    }
    size_t word = behind_prefix(s);
    if (!s.inside(word) || (s.kind(word) & kRules.letters) == 0) word = s.at();
    if ((s.kind(word) & kRules.letters) != 0) {
      s.piece(s.run(word, kRules.letters));
    } else {
      scan_rest(s, kRules);
    }
  }
}

// U*L+ from `word`, where U are the kinds of upper case and L those of lower: its end, or `word`.
size_t lower_word_end(const Scanner& s, size_t word) {
  const size_t upper_end = s.run(word, kIsUpper);
  const size_t lower_end = s.run(upper_end, kIsLower);
  if (lower_end > upper_end) return lower_end;
  // L+ must have a character: the last of U* that can be one.
  size_t last = word;
  for (size_t i = word; i < upper_end; i = s.after(i)) {
    if ((s.kind(i) & kIsLower) != 0) last = s.after(i);
  }
  return last;
}

// The word at s.at(), or s.at() where there is none.
size_t cased_word_end(const Scanner& s) {
  const size_t word = behind_prefix(s);
  if (const size_t end = lower_word_end(s, word); end > word) return end;
  // A mark may be a prefix, or the word itself.
  if (const size_t end = lower_word_end(s, s.at()); end > s.at()) return end;
  const size_t end = s.run(word, kIsUpper);  // U+L*, where no L follows
  return end > word ? end : s.at();
}

void scan_o200k(std::string_view text, const Cut& cut, std::vector<Cut>& out) {
  constexpr Rules kRules{.slash = true};
  Scanner s(text, cut, out);
  while (!s.done()) {
    if (const size_t end = cased_word_end(s); end > s.at()) {
      s.piece(s.contraction(end, true));
    } else {
      scan_rest(s, kRules);
    }
  }
}

}  // namespace

Splitter splitter_of(std::string_view pattern) {
  if (pattern == kGpt2Pattern) return scan_gpt2;
  if (pattern == kCl100kPattern) return scan_cl100k<Rules{}>;
  if (pattern == kTiktokenCl100kPattern) return scan_cl100k<Rules{.last_whole = true}>;
  if (pattern == kQwenPattern) return scan_cl100k<Rules{.digits = 1}>;
  if (pattern == kQwen35Pattern) {
    return scan_cl100k<Rules{.letters = kIsLetter | kIsMark, .digits = 1}>;
  }
  if (pattern == kO200kPattern) return scan_o200k;
  return nullptr;
}

}  // namespace troupe
