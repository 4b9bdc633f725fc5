#include "troupe/data/tokenizer/chat_template.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "troupe/testing/files.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

using testing::has;
using testing::put_file;
using testing::refusal_code;
using testing::TemporaryFolder;

// "name=text" of each.
std::string said(const std::vector<NamedText>& texts) {
  std::string out;
  for (const NamedText& one : texts) out += (out.empty() ? "" : " ") + one.name + '=' + one.text;
  return out;
}

struct ModelTemplates : ::testing::Test {
  TemporaryFolder folder;
  std::string config = folder / "tokenizer_config.json";

  std::string found() const {
    const auto all = find_model_template(folder / "tokenizer.json");
    return all ? said(all->templates) : "none";
  }
  void SetUp() override { put_file(folder / "tokenizer.json", "{}"); }
};

TEST_F(ModelTemplates, AWordAndAFolderWithoutOneHaveNone) {
  EXPECT_FALSE(find_model_template("bytes"));
  EXPECT_EQ(found(), "none");
  put_file(config, R"({"eos_token": "</s>", "chat_template": null})");
  EXPECT_EQ(found(), "none");
}

TEST_F(ModelTemplates, OfAConfigMayBeATextOrAListOfNamedOnes) {
  put_file(config, R"({"chat_template": "A"})");
  EXPECT_EQ(found(), "default=A");
  put_file(config, R"({"chat_template": [{"name": "default", "template": "A"},
                                         {"name": "tool_use", "template": "B"}]})");
  EXPECT_EQ(found(), "default=A tool_use=B");
  EXPECT_EQ(find_model_template(folder / "tokenizer.json")->file, config);
}

TEST_F(ModelTemplates, FilesOfTheirOwnComeFirst) {
  put_file(folder / "chat_template.json", R"({"chat_template": "J"})");
  EXPECT_EQ(found(), "default=J");
  put_file(config, R"({"chat_template": "A"})");
  EXPECT_EQ(found(), "default=A");
  put_file(folder / "chat_template.jinja", "B");
  EXPECT_EQ(found(), "default=B");
  std::filesystem::create_directory(folder / "additional_chat_templates");
  put_file(folder / "additional_chat_templates/tool_use.jinja", "C");
  put_file(folder / "additional_chat_templates/note.txt", "D");
  EXPECT_EQ(found(), "default=B tool_use=C");
}

TEST_F(ModelTemplates, TokensAreThoseOfTheConfigThenOfTheMap) {
  put_file(config, R"({"chat_template": "A", "bos_token": null, "pad_token": {"content": "<p>"},
                       "eos_token": "</s>", "image_token": "<i>"})");
  put_file(folder / "special_tokens_map.json", R"({"bos_token": "<s>", "eos_token": "<e>"})");
  EXPECT_EQ(said(find_model_template(folder / "tokenizer.json")->tokens),
            "eos_token=</s> pad_token=<p> bos_token=<s>");
}

TEST_F(ModelTemplates, ANameIsAFileAFolderOrOneOfSeveral) {
  const std::string tokenizer = folder / "tokenizer.json";
  put_file(config, R"({"eos_token": "</s>", "chat_template": [{"name": "rag", "template": "R"}]})");
  put_file(folder / "own.jinja", "O");
  const ModelTemplate own = open_model_template(folder / "own.jinja", tokenizer);
  EXPECT_EQ(said(own.templates), "default=O");
  EXPECT_EQ(said(own.tokens), "eos_token=</s>");
  EXPECT_EQ(said(open_model_template(config, "bytes").templates), "rag=R");
  EXPECT_EQ(said(open_model_template(config, "bytes").tokens), "");
  EXPECT_EQ(open_model_template("rag", tokenizer).chosen, "rag");
  std::filesystem::create_directory(folder / "empty");
  const auto refusal = [&](const std::string& name, const std::string& of) {
    return refusal_code(Code::kBadValue, [&] { open_model_template(name, of); });
  };
  EXPECT_PRED2(has, refusal("tool_use", tokenizer), "it has rag");
  EXPECT_PRED2(has, refusal("rag", "bytes"), "bytes has no chat template beside it");
  EXPECT_PRED2(has, refusal(folder / "empty", tokenizer),
               "has no chat template: chat_template.jinja");
}

TEST_F(ModelTemplates, DamagedFilesAreNamed) {
  const auto refusal = [&] { return refusal_code(Code::kBadTokenizer, [&] { found(); }); };
  put_file(config, R"({"chat_template": 3})");
  EXPECT_PRED2(has, refusal(), "chat_template is not a list");
  put_file(config, R"({"chat_template": []})");
  EXPECT_PRED2(has, refusal(), "chat_template is empty");
  put_file(config, R"({"chat_template": [{"name": "a"}]})");
  EXPECT_PRED2(has, refusal(), "chat_template[0]");
  put_file(config, R"({"chat_template": "A", "eos_token": 3})");
  EXPECT_PRED2(has, refusal(), "eos_token is not a string");
  put_file(folder / "chat_template.jinja", "\xFF");
  EXPECT_PRED2(has, refusal(), "is not UTF-8 text");
  put_file(folder / "chat_template.jinja", std::string(300000, 'x'));
  EXPECT_PRED2(has, refusal(), "300000 bytes of chat templates");
}

}  // namespace
}  // namespace troupe
