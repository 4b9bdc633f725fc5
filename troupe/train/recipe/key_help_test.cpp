#include "troupe/train/recipe/key_help.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "troupe/core/config/config.h"
#include "troupe/core/config/json.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {
namespace {

TEST(KeyHelp, EachFieldHasAText) {
  const std::vector<FieldInfo> fields = recipe_fields();
  EXPECT_GT(fields.size(), 200U);
  for (const FieldInfo& field : fields) {
    EXPECT_EQ(explain_key(field.path).find("\n  \n"), std::string::npos)
        << field.path << " has no text";
  }
  for (const FieldInfo& field : fields) {
    EXPECT_TRUE(field.help.ends_with('.')) << field.path << ": " << field.help;
  }
}

TEST(KeyHelp, EachKindOfAChoiceHasAText) {
  int choices = 0;
  for (const FieldInfo& field : recipe_fields()) {
    if (!field.path.ends_with(".kind") || field.path == "model.norm.kind") continue;
    ++choices;
    std::vector<std::string> texts;
    std::istringstream help(field.help);
    for (std::string text; std::getline(help, text, ';');) {
      texts.push_back(text.substr(text.find(": ") + 2));
    }
    EXPECT_EQ(std::ranges::count(field.type, ',') + 1, std::ssize(texts)) << field.help;
    std::ranges::sort(texts);  // one that inherits its kHelp would say the same as another
    EXPECT_TRUE(std::ranges::adjacent_find(texts) == texts.end()) << field.help;
  }
  EXPECT_GE(choices, 5);
}

TEST(KeyHelp, AFieldOfSeveralKindsNamesThemAll) {
  const std::string groups = explain_key("model.moe.router.limit.groups");
  EXPECT_NE(groups.find("kinds    topk_softmax, sigmoid_bias\n"), std::string::npos) << groups;
  const std::string jitter = explain_key("model.moe.router.jitter");
  EXPECT_EQ(jitter.find("kinds    "), std::string::npos) << "every kind has it: " << jitter;
}

TEST(KeyHelp, AFieldIsFoundByPathEndAndOtherNames) {
  const std::string whole = explain_key("model.moe.top_k");
  EXPECT_NE(whole.find("model.moe.top_k\n  Experts per token, K"), std::string::npos) << whole;
  EXPECT_NE(whole.find("type     an integer\n"), std::string::npos);
  EXPECT_NE(whole.find("default  2"), std::string::npos);
  EXPECT_NE(whole.find("num_experts_per_tok"), std::string::npos);
  EXPECT_EQ(explain_key("num_experts_per_tok"), whole);
  EXPECT_NE(explain_key("tail").find("kinds    wsd\n"), std::string::npos);
  EXPECT_NE(explain_key("train.schedule").find("holds    kind, warmup"), std::string::npos);
  try {
    explain_key("train.sede");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kNoSuchField);
    EXPECT_NE(std::string(error.what()).find("\"train.seed\""), std::string::npos) << error.what();
  }
}

TEST(KeyHelp, EveryAliasLeadsToAField) {
  const std::vector<FieldInfo> fields = recipe_fields();
  for (const Alias& alias : Recipe::aliases()) {
    bool there = false;
    for (const FieldInfo& field : fields) there |= field.path == alias.path;
    EXPECT_TRUE(there) << alias.name << ": " << alias.path;
    EXPECT_EQ(normalized(alias.name), alias.name);
  }
}

TEST(KeyHelp, OtherProgramsNamesAreTranslatedInMessages) {
  Recipe recipe;
  try {
    read_config(parse_yaml("model: {moe: {num_experts: 8}}\nlearning_rate: 1\n", "r.yaml"), recipe);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "r.yaml:1: E2003 no field \"num_experts\" in model.moe; here it is "
                 "\"model.moe.experts\"\n"
                 "r.yaml:2: E2003 no field \"learning_rate\" in the recipe; here it is "
                 "\"train.optimizer.lr\"");
  }
}

TEST(KeyHelp, TheSchemaIsJsonAndHoldsAllKinds) {
  std::ostringstream os;
  write_recipe_schema(os);
  const Yaml schema = parse_json(os.str(), "schema");
  ASSERT_EQ(schema.kind, Yaml::Kind::kMap);
  EXPECT_NE(
      os.str().find("\"tail\":{\"description\":\"wsd: shape of the decay.\",\"enum\":[\"linear\""),
      std::string::npos);
  EXPECT_NE(os.str().find("\"additionalProperties\":false"), std::string::npos);
}

TEST(KeyHelp, TablesOfKeysHaveEachFieldOnceWithTypeDefaultAndMeaning) {
  std::ostringstream os;
  write_recipe_keys(os);
  const std::string page = os.str();
  EXPECT_TRUE(
      page.starts_with("## model\n| key | type | default | meaning |\n|---|---|---|---|\n"));
  EXPECT_NE(page.find("| `model.moe.top_k` | an integer |"), std::string::npos);
  for (const FieldInfo& field : recipe_fields()) {
    const std::string begin = "\n| `" + field.path + "` | ";
    const size_t row = page.find(begin);
    ASSERT_NE(row, std::string::npos) << field.path;
    EXPECT_EQ(page.find(begin, row + 1), std::string::npos) << field.path;
    const std::string line = page.substr(row + 1, page.find('\n', row + 1) - row - 1);
    EXPECT_TRUE(line.ends_with(" |") && !line.ends_with("|  |")) << line;
    EXPECT_NE(line.find(field.value), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace troupe
