#include "troupe/core/config/yaml.h"

#include <gtest/gtest.h>

#include <random>

#include "troupe/core/check.h"

namespace troupe {
namespace {

std::string error_of(const std::string& text) {
  try {
    parse_yaml(text, "r.yaml");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Yaml, RemembersTheLineOfEachValue) {
  const Yaml y = parse_yaml("a: 1\nb:\n  - x\n  - {c: no}\n", "r.yaml");
  ASSERT_EQ(y.fields.size(), 2u);
  EXPECT_EQ(y.fields[1].where.line, 2);
  const Yaml& list = y.fields[1].value;
  ASSERT_EQ(list.items.size(), 2u);
  EXPECT_EQ(to_text(list.items[0].where), "r.yaml:3");
  EXPECT_EQ(list.items[1].fields[0].value.text, "no");
}

TEST(Yaml, AnEmptyDocumentIsNull) {
  EXPECT_EQ(parse_yaml("", "r.yaml").kind, Yaml::Kind::kNull);
  EXPECT_EQ(parse_yaml("# nothing\n", "r.yaml").kind, Yaml::Kind::kNull);
}

TEST(Yaml, RefusesAFieldWrittenTwice) {
  EXPECT_EQ(error_of("a: 1\nb: 2\na: 3\n"), "r.yaml:3: E2002 field \"a\" is written twice");
}

TEST(Yaml, NamesTheLineOfASyntaxError) {
  EXPECT_EQ(error_of("a: 1\nb: [1, 2\n"),
            "r.yaml:2: E2001 a quote or a bracket is still open at the end");
  EXPECT_EQ(error_of("a: 1\nb: ]\n").substr(0, 17), "r.yaml:2:4: E2001");
  EXPECT_EQ(error_of("? [1]\n: 2\n"), "r.yaml:1: E2001 a field's name must be plain text");
}

TEST(Yaml, F76_ShowsLineColumnAndTheLine) {
  const std::string tab = error_of("a:\n\tb: 1\n");
  EXPECT_EQ(tab.substr(0, 7), "r.yaml:") << tab;
  EXPECT_NE(tab.find("E2001"), std::string::npos) << tab;
  EXPECT_NE(tab.find("\tb: 1\""), std::string::npos) << tab;
  EXPECT_NE(
      error_of("a:\n  b: 1\n \tc: 2\n").find("r.yaml:3:2: E2001 the line is indented with a tab"),
      std::string::npos);
  EXPECT_EQ(error_of("a: 1\nb: \"x\nc: 2\n"),
            "r.yaml:3: E2001 a quote or a bracket is still open at the end");
}

TEST(Yaml, F76_IsBoundedWhateverTheFile) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (char c = '1'; c <= '9'; ++c) {
    const std::string name = {'a', c}, last = {'*', 'a', static_cast<char>(c - 1)};
    bomb.append(name).append(": &").append(name).append(" [").append(last);
    for (int k = 0; k < 9; ++k) bomb.append(", ").append(last);
    bomb += "]\n";
  }
  EXPECT_NE(error_of(bomb).find("more values than 20000"), std::string::npos);
  EXPECT_NE(error_of("a: &a [*a]\n").find("an alias to a value that contains it"),
            std::string::npos);
  EXPECT_NE(error_of(std::string(100000, '[')).find("E2001"), std::string::npos);
  EXPECT_NE(error_of("a: " + std::string(5 << 20, 'x')).find("bytes, more than"),
            std::string::npos);
  EXPECT_EQ(error_of("a: 1\n---\nb: 2\n").substr(0, 15), "r.yaml:2: E2001");
}

TEST(Yaml, AnAliasIsWrittenOut) {
  const Yaml y = parse_yaml("a: &x {b: [1, 2]}\nc: *x\nd: &y ~\ne: *y\n", "r.yaml");
  ASSERT_EQ(y.fields.size(), 4u);
  EXPECT_EQ(y.fields[1].value.fields[0].value.items[1].text, "2");
  EXPECT_EQ(y.fields[3].value.kind, Yaml::Kind::kNull);
  EXPECT_NE(error_of("a: *none\n").find("E2001"), std::string::npos);
  std::string deep = "a: &a [[[[[[[[[[1]]]]]]]]]]\n";  // ten more with each alias
  for (char c = 'b'; c <= 'g'; ++c) {
    deep +=
        std::string{c, ':', ' ', '&', c} + " [[[[[[[[[*" + static_cast<char>(c - 1) + "]]]]]]]]]\n";
  }
  EXPECT_NE(error_of(deep).find("nested deeper than 64"), std::string::npos);
}

TEST(Yaml, QuotesMakeTextOfNull) {
  const Yaml y = parse_yaml("[~, null, '~', \"\", ]", "r.yaml");
  ASSERT_EQ(y.items.size(), 4u);
  EXPECT_EQ(y.items[1].kind, Yaml::Kind::kNull);
  EXPECT_EQ(y.items[2].text, "~");
  EXPECT_EQ(y.items[3].kind, Yaml::Kind::kScalar);
}

TEST(Yaml, F143_NoTextBreaksTheParser) {
  std::mt19937 random(3);
  const std::vector<std::string> pieces = {"a",  ": ", "- ", "\n", "  ",  "[",  "]",  "{",
                                           "}",  ",",  "\"", "'",  "#",   "&x", "*x", "|",
                                           "> ", "?",  "!",  "%",  "---", "\t"};
  for (int i = 0; i < 3000; ++i) {
    std::string text;
    for (size_t n = random() % 20; n > 0; --n) text += pieces[random() % pieces.size()];
    const std::string error =
        error_of(text);  // an Error or none; any other exception fails the test
    EXPECT_TRUE(error.empty() || error.starts_with("r.yaml")) << text << '\n' << error;
  }
}

TEST(Yaml, NamesAFileThatIsNotThere) {
  try {
    load_yaml("no/such.yaml");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "no/such.yaml: E2007 cannot open: No such file or directory");
  }
}

}  // namespace
}  // namespace troupe
