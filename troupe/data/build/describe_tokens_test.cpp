#include "troupe/data/build/describe_tokens.h"

#include <gtest/gtest.h>

#include "troupe/data/build/corpus_texts.h"
#include "troupe/data/build/count_corpus.h"
#include "troupe/testing/files.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

using testing::has;
using testing::put_file;
using testing::refusal_code;
using testing::TemporaryFolder;

const BuildTokenizer kBytes{.encode =
                                [](std::string_view text, std::vector<int32_t>& ids) {
                                  for (const char c : text) {
                                    ids.push_back(static_cast<unsigned char>(c));
                                  }
                                },
                            .vocab = 257,
                            .eod = 256,
                            .fingerprint = "b"};

constexpr const char* kChat =
    R"({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]})"
    "\n"
    R"({"messages": [{"role": "user", "content": "and"}, {"role": "assistant", "content": ""}]})"
    "\n";

BuildConfig chat_in(const TemporaryFolder& folder) {
  put_file(folder / "in.jsonl", kChat);
  return {.input = {folder / "in.jsonl"},
          .output = folder / "out",
          .format = CorpusFormat::kChat,
          .key = "messages",
          .chat = {.open = "<{role}>", .close = "|", .learn = "assistant"}};
}

TEST(Describe, SaysWhatABuildMade) {
  const TemporaryFolder folder;
  const BuildConfig config = chat_in(folder);
  Fs fs;
  build_corpus(config, kBytes, fs);
  const TokenSummary s = describe_tokens(config.output + ".idx", /*scan=*/true);
  // <user>hi|<assistant>ho| and the end of document: 9 + 14 + 1.
  EXPECT_EQ(s.documents, 2);
  EXPECT_EQ(s.tokens, 24 + 23);
  EXPECT_EQ(s.shortest, 23);
  EXPECT_EQ(s.longest, 24);
  EXPECT_EQ(s.type, "u16");
  EXPECT_EQ(s.bytes, 2 * s.tokens);
  EXPECT_TRUE(s.weights);
  EXPECT_EQ(s.scan->learned, 4 + 2);  // "ho|" and "|", with the ends behind them
  EXPECT_EQ(s.scan->largest, 256);
  EXPECT_EQ(s.scan->smallest, '<');
  EXPECT_EQ(s.built->tokenizer, "b");
}

TEST(Describe, CountsWithoutWritingWhatABuildWrites) {
  const TemporaryFolder folder;
  const BuildConfig config = chat_in(folder);
  const CorpusCount counted = count_corpus(config, kBytes);
  EXPECT_FALSE(std::filesystem::exists(config.output + ".idx"));
  Fs fs;
  const BuildResult built = build_corpus(config, kBytes, fs);
  EXPECT_EQ(counted.tokens, built.info.tokens);
  EXPECT_EQ(counted.documents, built.info.documents);
  EXPECT_EQ(counted.text_bytes, built.text_bytes);
  EXPECT_EQ(counted.learned, describe_tokens(config.output, true).scan->learned);
}

TEST(Describe, AnIdBeyondTheVocabularyIsNamed) {
  const TemporaryFolder folder;
  const BuildConfig config = chat_in(folder);
  Fs fs;
  build_corpus(config, kBytes, fs);
  std::string bin = testing::bytes_of_file(config.output + ".bin");
  bin[3] = 0x7F;  // token 1
  put_file(config.output + ".bin", bin);
  describe_tokens(config.output, /*scan=*/false);  // the index alone is sound
  EXPECT_PRED2(has, refusal_code(Code::kBadToken, [&] { describe_tokens(config.output, true); }),
               "out.bin");
}

TEST(Describe, FilesOfTwoBuildsAreToldApart) {
  const TemporaryFolder folder;
  const BuildConfig config = chat_in(folder);
  Fs fs;
  build_corpus(config, kBytes, fs);
  std::string json = testing::bytes_of_file(config.output + ".json");
  json.replace(json.find("\"tokens\":47"), 11, "\"tokens\":48");
  put_file(config.output + ".json", json);
  EXPECT_PRED2(has,
               refusal_code(Code::kBadTokenFile, [&] { describe_tokens(config.output, false); }),
               "48 tokens");
}

TEST(Texts, AreTheDocumentsInOrder) {
  const TemporaryFolder folder;
  put_file(folder / "a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"\"}\n{\"text\": \"t\\u00e4\"}\n");
  const CorpusTexts found = corpus_texts({.input = {folder / "a.jsonl"}});
  EXPECT_EQ(found.texts, (std::vector<std::string>{"one", "t\xC3\xA4"}));
  EXPECT_EQ(found.bytes, 6);
  put_file(folder / "c.jsonl", kChat);
  const CorpusTexts chat = corpus_texts(
      {.input = {folder / "c.jsonl"}, .format = CorpusFormat::kChat, .key = "messages"});
  EXPECT_EQ(chat.texts, (std::vector<std::string>{"hi", "ho", "and"}));
}

TEST(Texts, ALimitTakesEvenlyOverAllOfTheCorpus) {
  const TemporaryFolder folder;
  constexpr int kFiles = 100;
  for (int i = 0; i < kFiles; ++i) {
    put_file(folder / std::to_string(100 + i).append(".txt"), std::string(1000, 'a'));
  }
  const CorpusTexts found = corpus_texts({.input = {folder.path()}, .most = {20'000}});
  EXPECT_EQ(found.corpus_bytes, 100'000);
  EXPECT_NEAR(static_cast<double>(found.read_bytes), 20'000, 1000);
  EXPECT_EQ(std::ssize(found.texts), found.read_bytes / 1000);
}

TEST(Texts, ABadLineNamesItsPlace) {
  const TemporaryFolder folder;
  put_file(folder / "a.jsonl", "{\"text\": \"one\"}\n{\"txt\": 1}\n");
  EXPECT_PRED2(
      has, refusal_code(Code::kBadDocument, [&] { corpus_texts({.input = {folder / "a.jsonl"}}); }),
      "a.jsonl:2");
}

}  // namespace
}  // namespace troupe
