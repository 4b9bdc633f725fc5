// Regular expressions of tokenizer files, which are written for Oniguruma (Hugging Face) or Rust's
// engines (tiktoken), run by PCRE2. Where the dialects differ the pattern is rewritten, so that \s,
// \w, \d and \p{..} mean what they mean there, with the characters of Unicode 16; what cannot be
// rewritten is refused by name.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace troupe {

class Regex {
 public:
  // What one thread needs to match; for any Regex, one call at a time.
  class Scratch {
   public:
    Scratch();
    Scratch(Scratch&&) noexcept;
    ~Scratch();

   private:
    friend class Regex;
    struct Parts;
    std::unique_ptr<Parts> parts_;
  };

  struct Match {
    size_t begin, end;
  };

  // Throws E3101 with `place` and what PCRE2 says of a pattern that it does not take.
  Regex(const std::string& pattern, const std::string& place);
  Regex(Regex&&) noexcept;
  ~Regex();

  // Exactly this text, as a pattern.
  static std::string quoted(std::string_view text);

  // The first match at or after `from`; false if there is none. `text` must be valid UTF-8 and
  // `from` between two characters. A search that takes far more steps than any sound pattern does
  // throws E3204, in place of running forever.
  bool find(std::string_view text, size_t from, Scratch& scratch, Match& match) const;

  // f(begin, end) for all matches, from left to right, none overlapping. A match of nothing counts,
  // but not at the end of the one before. Linear in the text: where it has taken the processor more
  // than kBaseSeconds and kSecondsPerByte of the text, E3204. Sound patterns take 0.02 to 0.06 us a
  // byte, of which looking after the time is a third; the families' patterns have scanners of their
  // own.
  static constexpr double kBaseSeconds = 0.25, kSecondsPerByte = 2e-6;
  template <class F>
  void for_each(std::string_view text, Scratch& scratch, F&& f) const {
    constexpr size_t kNone = static_cast<size_t>(-1);
    begin_text(text, scratch);
    size_t from = 0, last_end = kNone;
    Match m{};
    while (from <= text.size() && find(text, from, scratch, m)) {
      if (m.begin == m.end && m.end == last_end) {
        from = next_character(text, from);
        continue;
      }
      f(m.begin, m.end);
      from = last_end = m.end;
    }
  }

 private:
  static size_t next_character(std::string_view text, size_t at);
  static void begin_text(std::string_view text, Scratch& scratch);

  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// The pattern as PCRE2 (UTF, UCP) must see it, with a callout before all that may repeat without a
// bound, at which the time is looked at. Shown to tests.
std::string pcre2_pattern(const std::string& pattern, const std::string& place);

}  // namespace troupe
