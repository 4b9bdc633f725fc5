#include "troupe/data/tokenizer/splitter.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "troupe/core/check.h"
#include "troupe/core/text/utf8.h"
#include "troupe/data/tokenizer/patterns.h"
#include "troupe/testing/cpu_seconds.h"

namespace troupe {
namespace {

constexpr std::array kAll = {kGpt2Pattern, kCl100kPattern, kTiktokenCl100kPattern,
                             kQwenPattern, kQwen35Pattern, kO200kPattern};

std::vector<std::string> scanned(std::string_view pattern, const std::string& text) {
  std::vector<Cut> cuts;
  splitter_of(pattern)(text, {0, text.size()}, cuts);
  std::vector<std::string> out;
  for (const Cut& cut : cuts) out.push_back(text.substr(cut.begin, cut.end - cut.begin));
  return out;
}

std::vector<std::string> matched(const Regex& regex, const std::string& text) {
  Regex::Scratch scratch;
  std::vector<std::string> out;
  size_t done = 0;
  regex.for_each(text, scratch, [&](size_t begin, size_t end) {
    EXPECT_EQ(begin, done) << "the pattern leaves something out of " << text;
    if (begin < end) out.push_back(text.substr(begin, end - begin));
    done = end;
  });
  return out;
}

// PCRE2 anchors $ at every line end where tiktoken's engine does so at the end of the text alone.
std::string for_pcre2(std::string_view pattern) {
  std::string out(pattern);
  if (const size_t at = out.find('$'); at != std::string::npos) out.replace(at, 1, "(?!.|\\n)");
  return out;
}

std::string random_text(std::mt19937& rng) {
  static const std::vector<char32_t> kChars = {
      ' ',     ' ',     ' ',      '\n',   '\r',   '\t',    '\'',   'a',    'b',    's',
      't',     'l',     'L',      'S',    'R',    'e',     'V',    'd',    '1',    '2',
      '3',     '/',     '.',      '!',    '-',    '_',     0,      0x85,   0xA0,   0xB2,
      0xDF,    0xE9,    0xC9,     0x17F,  0x1C5,  0x2B0,   0x300,  0x301,  0x345,  0x4E2D,
      0x6587,  0x3042,  0x1D2C,   0x661,  0x2028, 0x3000,  0x180E, 0x200D, 0x2160, 0x24B6,
      0x1F600, 0x1F1E6, 0x10FFFF, 0x1C89, 0x1C8A, 0x31350, 0xFFFD, 0x203F};
  std::string out;
  const auto n = rng() % 24;
  for (unsigned i = 0; i < n; ++i) append_utf8(out, kChars[rng() % kChars.size()]);
  return out;
}

TEST(Splitter, EqualsPcre2OnRandomText) {
  std::mt19937 rng(7);
  std::vector<Regex> all;
  for (const std::string_view pattern : kAll) all.emplace_back(for_pcre2(pattern), "test");
  for (int i = 0; i < 6000; ++i) {
    const std::string text = random_text(rng);
    const std::string_view pattern = kAll[static_cast<size_t>(i) % kAll.size()];
    ASSERT_EQ(scanned(pattern, text), matched(all[static_cast<size_t>(i) % kAll.size()], text))
        << pattern << '\n'
        << text;
  }
}

TEST(Splitter, CutsAsTheFamiliesDo) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(scanned(kGpt2Pattern, "I'm  12x\n\n y"),
            (Words{"I", "'m", " ", " 12", "x", "\n\n", " y"}));
  EXPECT_EQ(scanned(kCl100kPattern, "I'M 1234 a\n \n b"),
            (Words{"I", "'M", " ", "123", "4", " a", "\n \n", " b"}));
  EXPECT_EQ(scanned(kQwenPattern, "x 12"), (Words{"x", " ", "1", "2"}));
  EXPECT_EQ(scanned(kO200kPattern, "HelloWORLD's //\n"), (Words{"Hello", "WORLD's", " //\n"}));
  EXPECT_EQ(scanned(kTiktokenCl100kPattern, "a \n  "), (Words{"a", " \n  "}));
  EXPECT_EQ(scanned(kCl100kPattern, "a \n  "), (Words{"a", " \n", "  "}));
}

TEST(Splitter, F73_AMegabyteOfOneCharacterTakesLinearTime) {
  for (const std::string unit :
       {"a", " ", "\xCC\x81", "\xE4\xB8\xAD", "A", "\n", "\n ", "1", "."}) {
    std::string text;
    while (text.size() < (size_t{1} << 20)) text += unit;
    for (const std::string_view pattern : kAll) {
      const double begin = cpu_seconds();
      scanned(pattern, text);
      EXPECT_LT(cpu_seconds() - begin, 10) << unit << pattern;  // a quadratic search takes an hour
    }
    const double begin = cpu_seconds();
    matched(Regex(std::string(kO200kPattern), "test"),
            text);  // a pattern that has no scanner goes this way
    EXPECT_LT(cpu_seconds() - begin, 10) << unit;
  }
}

TEST(Regex, F73_APatternThatBacktracksForEverIsStopped) {
  const Regex regex("(a+)+(a+)+b|(a|aa)+c", "tokenizer.json");
  Regex::Scratch scratch;
  Regex::Match match{};
  try {
    regex.find(std::string(60, 'a') + "d", 0, scratch, match);
    FAIL() << "it ended";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kSlowPattern);
    EXPECT_NE(std::string(e.what()).find("(a+)+"), std::string::npos) << e.what();
  }
}

// Each search is below PCRE2's limit of steps, and there are as many of them as characters.
TEST(Regex, F154_ATextTakesTimeInProportionToItsLengthOrIsRefused) {
  std::string text(size_t{1} << 18, 'a');
  text += "\xC3\xA9";
  for (const std::string pattern :
       {"a+[bc]", "a++[bc]", "(?:a)*[bc]", "(?:(?=a*+[bc])|a)+c", "[a-f]{2,}b", "\\w+[bc]",
        "(?=[^b]*b)a", ".*?\\d", "(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)(a|a)[bc]",
        "a*\xC3\xA9+[bc]", "(?i:A+)[bc]"}) {
    const double begin = cpu_seconds();
    int64_t found = 0;
    try {
      Regex::Scratch scratch;
      Regex(pattern, "tokenizer.json").for_each(text, scratch, [&](size_t, size_t) { ++found; });
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kSlowPattern) << e.what();
    }
    EXPECT_EQ(found, 0) << pattern;
    EXPECT_LT(cpu_seconds() - begin, 20) << pattern;  // hours without a limit for the text
  }
}

// One scratch serves many texts: a long time is none of the next text's.
TEST(Regex, F154_EachTextHasItsOwnTime) {
  const Regex slow("a++[bc]", "t"), quick("a+", "t");
  const std::string text(size_t{1} << 17, 'a');
  Regex::Scratch scratch;
  const auto none = [](size_t, size_t) {};
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(slow.for_each(text, scratch, none), Error);
    for (int k = 0; k < 1000; ++k) quick.for_each("aa b aa b a aa", scratch, none);
  }
}

TEST(Regex, ACalloutIsBeforeAllThatRepeats) {
  const auto seen = [](const std::string& pattern) { return pcre2_pattern(pattern, "t"); };
  EXPECT_EQ(seen("ab"), "(?C)ab");
  EXPECT_EQ(seen("ab+|c*?|d?"), "(?C)a(?C)b+|(?C)c*?|d?");
  EXPECT_EQ(seen("[ab]++c{2,}"), "(?C)(?C)[ab]++(?C)c{2,}");
  EXPECT_EQ(seen("(?:ab)+[]*]+"), "(?C)(?:ab)+(?C)[]*]+");
  EXPECT_EQ(seen("\xC3\xA9+"), "(?C)(?C)\xC3\xA9+");
  EXPECT_EQ(seen("\\.+(?#a+)}+"), "(?C)(?C)\\.+(?#a+)(?C)}+");
}

TEST(Regex, ClassesMeanWhatTheyMeanInTheFiles) {
  const auto all = [](const std::string& pattern, const std::string& text) {
    Regex::Scratch scratch;
    int n = 0;
    Regex(pattern, "test").for_each(text, scratch, [&](size_t, size_t) { ++n; });
    return n;
  };
  EXPECT_EQ(all("\\s", "\xE1\xA0\x8E"), 0);          // U+180E, a space to PCRE2 alone
  EXPECT_EQ(all("\\s", "\xC2\x85\xE2\x80\xA8"), 2);  // U+0085, U+2028
  EXPECT_EQ(all("[^\\S]", " a"), 1);
  EXPECT_EQ(all("\\p{L}", "\xE1\xB2\x89"), 1);  // U+1C89, a letter since Unicode 16
  EXPECT_EQ(all("[\\p{L}]", "\xE1\xB2\x89"), 1);
  EXPECT_EQ(all("\\P{L}", "\xE1\xB2\x89x1"), 1);
  EXPECT_EQ(all("\\w", "\xCC\x80_"), 2);  // a mark is part of a word
  EXPECT_EQ(all("\\u00e9", "\xC3\xA9"), 1);
  EXPECT_EQ(all("^a$", "a\nb\na"), 2);  // at every line, as in Ruby
  EXPECT_EQ(all(Regex::quoted("a.b*"), "a.b* axbb"), 1);
}

TEST(Regex, RefusesByNameWhatItCannotRewrite) {
  for (const std::string pattern : {"[a[b]]", "[a&&b]", "\\h", "(?m:a)", "(", "[\\W]", "\\p{Nope}",
                                    "\\", "a{2,1}", "\\X", "\\Qa+\\E"}) {
    try {
      const Regex regex(pattern, "t.json: pre_tokenizer");
      ADD_FAILURE() << pattern;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kBadTokenizer);
      EXPECT_EQ(std::string(e.what()).find("t.json: pre_tokenizer"), 0U) << e.what();
    }
  }
}

TEST(Regex, FindsEmptyMatchesOnceAndMovesOn) {
  const Regex regex("x*", "test");
  Regex::Scratch scratch;
  std::vector<std::pair<size_t, size_t>> found;
  regex.for_each("a\xC3\xA9xx", scratch, [&](size_t b, size_t e) { found.emplace_back(b, e); });
  EXPECT_EQ(found, (std::vector<std::pair<size_t, size_t>>{{0, 0}, {1, 1}, {3, 5}}));
}

TEST(Utf8, RepairsAsRustAndPythonDo) {
  const std::string r(kReplacement);
  EXPECT_EQ(repaired_utf8("a\xFF"
                          "b"),
            "a" + r + "b");
  EXPECT_EQ(repaired_utf8("\xE2\x96"), r);
  EXPECT_EQ(repaired_utf8("\xE2\x96z\xF0\x9F\x98"), r + "z" + r);
  EXPECT_EQ(repaired_utf8("\xED\xA0\x80"), r + r + r);  // a surrogate
  EXPECT_EQ(repaired_utf8("\xC0\xAF\xF5\x80"), r + r + r + r);
  EXPECT_EQ(repaired_utf8("\xF4\x90\x80\x80"), r + r + r + r);
  EXPECT_EQ(repaired_utf8(std::string("\0\xC3\xA9", 3)), std::string("\0\xC3\xA9", 3));
  EXPECT_EQ(incomplete_utf8_tail("ab\xF0\x9F\x98"), 3U);
  EXPECT_EQ(incomplete_utf8_tail("ab\xF0\x9F\x98\x80"), 0U);
  EXPECT_EQ(incomplete_utf8_tail("\x98\x80"), 0U);
}

}  // namespace
}  // namespace troupe
