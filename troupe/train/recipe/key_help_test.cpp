#include "troupe/train/recipe/key_help.h"

#include <gtest/gtest.h>

#include <sstream>

#include "troupe/core/config/config.h"
#include "troupe/core/config/json.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {
namespace {

TEST(KeyHelp, EachFieldHasATextAndEachTextAField) {
  const std::vector<FieldInfo> fields = recipe_fields();
  EXPECT_GT(fields.size(), 200U);
  for (const FieldInfo& field : fields) {
    EXPECT_EQ(explain_key(field.path).find("\n  \n"), std::string::npos)
        << field.path << " has no text";
  }
  for (const KeyHelp& line : key_help()) {
    bool used = false;
    for (const FieldInfo& field : fields) {
      used |= line.path.starts_with('*') ? field.path.ends_with(line.path.substr(1))
                                         : field.path == line.path;
    }
    EXPECT_TRUE(used) << line.path << " is no field";
  }
}

TEST(KeyHelp, AFieldIsFoundByPathEndAndOtherNames) {
  const std::string whole = explain_key("model.moe.top_k");
  EXPECT_NE(whole.find("model.moe.top_k\n  K, experts a token"), std::string::npos) << whole;
  EXPECT_NE(whole.find("type     an integer from"), std::string::npos);
  EXPECT_NE(whole.find("default  2"), std::string::npos);
  EXPECT_NE(whole.find("num_experts_per_tok"), std::string::npos);
  EXPECT_EQ(explain_key("num_experts_per_tok"), whole);
  EXPECT_NE(explain_key("tail").find("of kind  wsd"), std::string::npos);
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
  EXPECT_NE(os.str().find("\"tail\":{\"description\":\"wsd: its form.\",\"enum\":[\"linear\""),
            std::string::npos);
  EXPECT_NE(os.str().find("\"additionalProperties\":false"), std::string::npos);
}

}  // namespace
}  // namespace troupe
