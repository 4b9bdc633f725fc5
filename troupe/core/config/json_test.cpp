#include "troupe/core/config/json.h"

#include <gtest/gtest.h>

#include <random>
#include <sstream>

#include "troupe/core/config/config.h"
#include "troupe/core/text/units.h"

namespace troupe {
namespace {

enum class State { kWhole, kBad };
constexpr auto names_of(State) {
  return std::array{Named{"whole", State::kWhole}, Named{"bad", State::kBad}};
}

struct Shard {
  static constexpr std::string_view kKind = "shard";
  std::string name;
  int64_t offset = 0;
  static void visit(auto& c, auto&& f) {
    f("name", c.name);
    f("offset", c.offset);
  }
};

struct Manifest {
  State state = State::kWhole;
  bool last = true;
  double loss = 0.1;
  Bytes size = gib(2);
  std::optional<int> world;
  std::vector<Shard> shards;
  OneOf<Shard> first;
  static void visit(auto& c, auto&& f) {
    f("state", c.state);
    f("last", c.last);
    f("loss", c.loss);
    f("size", c.size);
    f("world", c.world);
    f("shards", c.shards);
    f("first", c.first);
  }
};

std::string written(const Manifest& m) {
  std::ostringstream os;
  write_json(os, m);
  return os.str();
}

Manifest read(const std::string& text) {
  Manifest m;
  read_config(parse_json(text, "m.json"), m);
  return m;
}

std::string error_of(const std::string& text) {
  try {
    read(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Json, WritesEveryFieldOnOneLine) {
  Manifest m;
  m.shards = {{"a\"\n", -1}, {"b", 2}};
  m.state = State::kBad;
  EXPECT_EQ(written(m), R"({"state":"bad","last":true,"loss":0.1,"size":"2GiB","world":null,)"
                        R"("shards":[{"name":"a\"\u000a","offset":-1},{"name":"b","offset":2}],)"
                        R"("first":{"kind":"shard","name":"","offset":0}})");
}

TEST(Json, WhatIsWrittenReadsBackTheSame) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 300; ++i) {
    Manifest m;
    m.loss = std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 600) - 300);
    if (random() % 2) m.world = static_cast<int>(random());
    m.size.value = static_cast<int64_t>(random() >> 1);
    for (size_t n = random() % 4; n > 0; --n) {
      std::string name;
      for (size_t k = random() % 6; k > 0; --k) name += static_cast<char>(random() % 128);
      m.shards.push_back({name + "\xc3\xa9", static_cast<int64_t>(random())});
    }
    ASSERT_TRUE(same(read(written(m)), m)) << written(m);
  }
}

TEST(Json, ANumberThatIsNotFiniteIsNull) {
  Manifest m;
  m.loss = std::nan("");
  EXPECT_NE(written(m).find("\"loss\":null"), std::string::npos);
}

TEST(Json, FaultsOfADocumentAreThoseOfARecipe) {
  EXPECT_EQ(error_of(R"({"last": 1, "los": 2})"),
            "m.json: E2005 last must be true or false, not \"1\"; did you mean \"true\"?\n"
            "m.json: E2003 no field \"los\" in the recipe; did you mean \"loss\"?");
}

TEST(Json, RefusesWhatIsMalformedAndNamesThePlace) {
  const std::string what = error_of("{\"last\": true,\n \"loss\" 1}");
  EXPECT_EQ(what.find("m.json: E3002 parse error at line 2, column"), 0u) << what;
  for (const char* text : {"", "{", "{}x", "[1,]", "nul", "{\"last\": \"\x80\"}", "{'last': 1}"}) {
    EXPECT_EQ(error_of(text).find("m.json: E3002 "), 0u) << text;
  }
  EXPECT_EQ(error_of(R"({"last": true, "last": false})"),
            "m.json: E3002 field \"last\" is written twice");
  try {
    parse_json("{", "m.json", Code::kUnreadableCheckpoint);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_class(), ExitClass::kCheckpoint);
  }
}

TEST(Json, F140_IsBoundedWhateverTheFile) {
  EXPECT_NE(error_of(std::string(100000, '[')).find("nested deeper than 64"), std::string::npos);
  std::string many = "[0";
  for (int i = 0; i < 1000000; ++i) many += ",0";
  EXPECT_NE(error_of(many + ']').find("more values than 1000000"), std::string::npos);
  EXPECT_NE(error_of("{\"loss\": " + std::string(1000000, '9') + "}"), "");
}

}  // namespace
}  // namespace troupe
