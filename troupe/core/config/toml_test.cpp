#include "troupe/core/config/toml.h"

#include <gtest/gtest.h>

#include <string>

#include "troupe/core/check.h"

namespace troupe {
namespace {

const Yaml& at(const Yaml& map, const std::string& name) {
  for (const Yaml::Field& field : map.fields) {
    if (field.name == name) return field.value;
  }
  ADD_FAILURE() << "no " << name;
  return map;
}

TEST(Toml, TablesKeysAndValuesOfAllKinds) {
  const Yaml y = parse_toml(R"(# a comment
top = 1
[a.b]
steps = 10_000   # another
rate = 2.2e-4
on = true
name = "x \"y\" # z"
literal = 'C:\path'
day = 1979-05-27
list = ["p", 'q',
  3, # inside
]
nested = [["embed", "layers.0"], ["norm"]]
pair = {left = 1, right.deep = "r"}
text = """
two
lines"""
[a]
"quoted key" = -1
[empty]
)",
                            "x.toml");
  EXPECT_EQ(at(y, "top").text, "1");
  const Yaml& b = at(at(y, "a"), "b");
  EXPECT_EQ(at(b, "steps").text, "10000");
  EXPECT_EQ(at(b, "rate").text, "2.2e-4");
  EXPECT_EQ(at(b, "on").text, "true");
  EXPECT_EQ(at(b, "name").text, "x \"y\" # z");
  EXPECT_EQ(at(b, "literal").text, "C:\\path");
  EXPECT_EQ(at(b, "day").text, "1979-05-27");
  ASSERT_EQ(at(b, "list").items.size(), 3U);
  EXPECT_EQ(at(b, "list").items[2].text, "3");
  EXPECT_EQ(at(b, "nested").items[0].items[1].text, "layers.0");
  EXPECT_EQ(at(at(at(b, "pair"), "right"), "deep").text, "r");
  EXPECT_EQ(at(b, "text").text, "two\nlines");
  EXPECT_EQ(at(at(y, "a"), "quoted key").text, "-1");
  EXPECT_TRUE(at(y, "empty").fields.empty());
  EXPECT_EQ(to_text(at(b, "rate").where), "x.toml:5");
}

TEST(Toml, WhatIsNotOneIsRefusedWithItsLine) {
  const auto fault = [](const std::string& text) {
    try {
      parse_toml(text, "x.toml");
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("read");
  };
  EXPECT_EQ(fault("a = 1\na = 2\n"), "x.toml:2: E2002 a is written twice");
  EXPECT_EQ(fault("[a]\nb = 1\n[a.b]\n"), "x.toml:3: E2002 b is a value, not a table");
  EXPECT_EQ(fault("\n[[a]]\n"), "x.toml:2: E2001 arrays of tables are not read");
  EXPECT_EQ(fault("a = \"b\n"), "x.toml:1: E2001 a string has no end on its line");
  EXPECT_EQ(fault("a = [1 2]\n"), "x.toml:1: E2001 ',' is expected");
  EXPECT_EQ(fault("a = 1 b = 2\n"), "x.toml:1: E2001 one key or table a line");
  EXPECT_EQ(fault("a\n"), "x.toml:1: E2001 '=' is expected");
  EXPECT_EQ(fault("a = \n"), "x.toml:1: E2001 a value is expected");
  EXPECT_EQ(fault("a = \"\\q\"\n"), "x.toml:1: E2001 \\q is no escape that is read");
  EXPECT_NE(fault("a = " + std::string(100, '[')).find("nested more than 64 deep"),
            std::string::npos);
}

}  // namespace
}  // namespace troupe
