#include "troupe/data/tokenizer/tokenizers.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "troupe/core/check.h"
#include "troupe/core/text/utf8.h"
#include "troupe/data/tokenizer/bytes.h"
#include "troupe/data/tokenizer/encode_all.h"
#include "troupe/data/tokenizer/patterns.h"
#include "troupe/data/tokenizer/tiktoken.h"
#include "troupe/data/tokenizer/tokenizer_json.h"
#include "troupe/data/tokenizer/train_bpe.h"
#include "troupe/testing/backend.h"
#include "troupe/testing/files.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

using Ids = std::vector<TokenId>;

const std::vector<std::string_view> kTexts = {
    "the cat sat on the mat, the cat that sat",
    "on that mat the cat sat\n\nand sat",
    "",
    "x",
    "caf\xC3\xA9 caf\xC3\xA9 \xE4\xB8\xAD\xE6\x96\x87 \xE4\xB8\xAD\xE6\x96\x87",
    "the \xFF end"};

std::string trained(const BpeTraining& settings = {.vocab = 320}) {
  return train_bpe(kTexts, settings, serial);
}

void put(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string base64(const std::string& bytes) {
  static constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0U);
    }
    for (size_t k = 0; k < 4; ++k) {
      out += i + k <= bytes.size() && (k < 2 || i + k - 1 < bytes.size())
                 ? kDigits[bits >> (18 - 6 * k) & 63]
                 : '=';
    }
  }
  return out;
}

// All bytes, then "th", "the", " the".
std::string ranks() {
  std::string out;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte) {
    out += base64(std::string(1, static_cast<char>(byte))) + ' ' + std::to_string(rank++) + '\n';
  }
  for (const char* token : {"th", "the", " the"})
    out += base64(token) + ' ' + std::to_string(rank++) + '\n';
  return out;
}

TiktokenSettings settings() {
  return {std::string(kCl100kPattern), {{"<|end|>", 300}}, "", "<|end|>"};
}

Code code_of_opening(const std::string& name) {
  try {
    open_tokenizer(name);
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()).find(name), 0U) << e.what();
    return e.code();
  }
  ADD_FAILURE() << name << " was opened";
  return {};
}

TEST(Tokenizers, AreToldByContentNotByName) {
  const testing::TemporaryFolder folder;
  const std::string& root = folder.path();
  put(root + "/a.bin", trained());
  EXPECT_EQ(open_tokenizer(root + "/a.bin")->kind(), "tokenizer.json");
  std::filesystem::create_directory(root + "/hub");
  put(root + "/hub/tokenizer.json", trained());
  put(root + "/hub/tokenizer.model", "whatever");
  EXPECT_EQ(open_tokenizer(root + "/hub")->kind(), "tokenizer.json");
  std::filesystem::create_directory(root + "/gpt2");
  put(root + "/gpt2/vocab.json", R"({"a":0,"b":1,"ab":2,"<|endoftext|>":3})");
  put(root + "/gpt2/merges.txt", "#version: 0.2\na b\n");
  const auto gpt2 = open_tokenizer(root + "/gpt2");
  EXPECT_EQ(gpt2->kind(), "gpt2");
  EXPECT_EQ(gpt2->encode("ab<|endoftext|>"), (Ids{2, 3}));
  EXPECT_EQ(gpt2->special().eos, 3);
  EXPECT_EQ(open_tokenizer(root + "/gpt2/vocab.json")->kind(), "gpt2");
  EXPECT_EQ(open_tokenizer("bytes")->kind(), "bytes");
  EXPECT_EQ(open_tokenizer("null:16")->vocab_size(), 17);
}

TEST(Tokenizers, F74_WhatIsNoneIsRefusedWithItsName) {
  const testing::TemporaryFolder folder;
  const std::string& root = folder.path();
  put(root + "/empty", "");
  put(root + "/text", "just words\n");
  put(root + "/ranks", ranks());
  EXPECT_EQ(code_of_opening(root + "/empty"), Code::kNoTokenizer);
  EXPECT_EQ(code_of_opening(root + "/text"), Code::kNoTokenizer);
  EXPECT_EQ(code_of_opening(root), Code::kNoTokenizer);
  EXPECT_EQ(code_of_opening(root + "/nothing"), Code::kUnreadableData);
  EXPECT_EQ(code_of_opening("null:x"), Code::kBadTokenizer);
  EXPECT_EQ(code_of_opening(root + "/ranks"), Code::kBadTokenizer);  // 259 are no known encoding
  ASSERT_EQ(mkfifo((root + "/pipe").c_str(), 0600), 0);
  EXPECT_EQ(code_of_opening(root + "/pipe"), Code::kUnreadableData);
}

TEST(Tokenizers, F72_ALargerVocabularyThanTheModelsIsRefused) {
  const auto t = parse_tokenizer(trained(), "", "t.json");
  const int64_t size = t->vocab_size();
  ASSERT_GT(size, 270);
  EXPECT_NO_THROW(require_fits(*t, size, "recipe.yaml:3"));
  try {
    require_fits(*t, 256, "recipe.yaml:3");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kVocabTooLarge);
    EXPECT_NE(std::string(e.what()).find(std::to_string(size)), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("256"), std::string::npos);
  }
  EXPECT_EQ(padded_vocab(50257, 128), 50304);
  EXPECT_NE(t->fingerprint(),
            parse_tokenizer(trained({.vocab = 270}), "", "t.json")->fingerprint());
}

TEST(Tokenizers, F75_AnyIdsDecodeToValidTextAndStreamTheSame) {
  std::vector<std::unique_ptr<Tokenizer>> all;
  all.push_back(make_bytes_tokenizer());
  all.push_back(make_null_tokenizer("null:300"));
  all.push_back(parse_tokenizer(trained(), "", "t.json"));
  all.push_back(parse_tiktoken(ranks(), "t.tiktoken", settings()));
  std::mt19937 rng(3);
  for (int i = 0; i < 4000; ++i) {
    const Tokenizer& t = *all[static_cast<size_t>(i) % all.size()];
    Ids ids(rng() % 12);
    for (TokenId& id : ids) id = static_cast<TokenId>(rng() % 330) - 10;
    const DecodeOptions options{.skip_special = rng() % 2 == 0};
    const std::string text = t.decode(ids, options);
    ASSERT_TRUE(is_utf8(text)) << t.kind();
    TextStream stream(t, options);
    std::string streamed;
    for (const TokenId id : ids) {
      streamed += stream.add(id);
      ASSERT_TRUE(is_utf8(streamed)) << t.kind();
    }
    ASSERT_EQ(streamed + stream.finish(), text) << t.kind();
  }
  EXPECT_EQ(all[0]->decode(Ids{-1, 256, 1 << 30}), "");
}

TEST(Tokenizers, F64_NulAndInvalidUtf8HaveOneDefinedReading) {
  const auto t = parse_tokenizer(trained(), "", "t.json");
  EXPECT_EQ(t->encode("the \xFF end"), t->encode("the \xEF\xBF\xBD end"));
  EXPECT_EQ(t->decode(t->encode(std::string_view("a\0b", 3))), std::string("a\0b", 3));
  const std::string lone = "\xED\xA0\x80";  // half a surrogate pair
  EXPECT_EQ(t->decode(t->encode(lone)), repaired_utf8(lone));
  EXPECT_EQ(make_bytes_tokenizer()->encode("\xFF\x00"), (Ids{255}));
}

TEST(Tokenizers, ManyTextsOnAnyThreadsAreEachEncodedAlone) {
  const auto t = parse_tokenizer(trained(), "", "t.json");
  const auto one = encode_all(*t, kTexts, serial),
             three = encode_all(*t, kTexts, testing::three_threads);
  EXPECT_EQ(one, three);
  for (size_t i = 0; i < kTexts.size(); ++i) EXPECT_EQ(one[i], t->encode(kTexts[i]));
}

TEST(Null, TextIsItsIds) {
  const auto t = make_null_tokenizer("null:300");
  EXPECT_EQ(t->encode(" 17 4\n300"), (Ids{17, 4, 300}));
  EXPECT_EQ(t->decode(Ids{17, 4}), "17 4");
  EXPECT_EQ(t->special().eos, 300);
  EXPECT_THROW(t->encode("17 x"), Error);
  EXPECT_THROW(t->encode("301"), Error);
}

TEST(Tiktoken, LooksUpTheWholePieceThenMergesByRank) {
  const auto t = parse_tiktoken(ranks(), "t.tiktoken", settings());
  EXPECT_EQ(t->encode("the the thx<|end|>"), (Ids{257, 258, ' ', 256, 'x', 300}));
  EXPECT_EQ(t->decode(Ids{257, 258, 300}), "the the<|end|>");
  EXPECT_EQ(t->special().eos, 300);
  EXPECT_EQ(t->token(258), "\xC4\xA0the");
  EXPECT_EQ(t->vocab_size(), 301);
}

TEST(Tiktoken, F71_RefusesBadRanksByLine) {
  const auto refused = [](const std::string& text, const std::string& part) {
    try {
      parse_tiktoken(text, "t.tiktoken", settings());
      ADD_FAILURE() << part;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kBadTokenizer);
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    }
  };
  refused(ranks() + "@@@@ 400\n", "t.tiktoken:260");
  refused(ranks() + "AAAA\n", "t.tiktoken:260");
  refused(ranks() + "AAAA -1\n", "t.tiktoken:260");
  refused(ranks() + "AAAA 99999999\n", "t.tiktoken:260");
  refused(ranks() + "AB== 400\n", "t.tiktoken:260");  // bits behind the last byte
  refused(ranks() + "AAAA 5\n", "two tokens");
  refused(ranks() + "dGg= 400\n", "two ranks");
  refused("IQ== 0\n", "all 256 must");
}

TEST(Tiktoken, F155_F158_RanksFarBehindTheTokensAndLongTokensAreRefused) {
  const auto refused = [](const std::string& text, const std::string& part) {
    const std::string what = testing::refusal_code(
        Code::kBadTokenizer, [&] { parse_tiktoken(text, "t.tiktoken", settings()); });
    EXPECT_NE(what.find(part), std::string::npos) << what;
  };
  refused(ranks() + "AAAA 16777215\n", "has the rank 16777215");
  std::string base64;  // of a token each of whose halves is looked up
  while (base64.size() < 2000) base64 += "AAAA";
  refused(ranks() + base64 + " 400\n", "of 1024 bytes at most");
}

TEST(TrainBpe, MergesTheMostFrequentPairs) {
  const auto t = parse_tokenizer(train_bpe({"abab abab ab"}, {.vocab = 260}, serial), "", "t.json");
  const TokenId a = t->find("a"), ab = t->find("ab");
  EXPECT_EQ(a, 1 + 'a');
  EXPECT_EQ(ab, 257);
  EXPECT_EQ(t->special().eos, 0);
  EXPECT_EQ(t->encode("<|endoftext|>ab"), (Ids{0, 257}));
  EXPECT_EQ(t->decode(t->encode("abab \xE4\xB8\xAD ab")), "abab \xE4\xB8\xAD ab");
}

TEST(TrainBpe, TheSameBytesForAnyPoolAndOrder) {
  std::vector<std::string_view> backwards(kTexts.rbegin(), kTexts.rend());
  EXPECT_EQ(train_bpe(kTexts, {.vocab = 300}, testing::three_threads), trained({.vocab = 300}));
  EXPECT_EQ(train_bpe(backwards, {.vocab = 300}, serial), trained({.vocab = 300}));
}

TEST(TrainBpe, WhatItTrainedWithIsOneTokenAWordLater) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "aaaaaaa bababab ";
  const auto t = parse_tokenizer(train_bpe({text}, {.vocab = 512}, serial), "", "t.json");
  EXPECT_EQ(t->encode(" aaaaaaa bababab").size(), 2U);
  EXPECT_LT(t->vocab_size(), 300);  // no pair is left: fewer than were asked for
}

TEST(TrainBpe, EveryPatternMakesAFileThatReadsBack) {
  for (const char* pattern : {"gpt2", "cl100k", "qwen", "o200k"}) {
    const auto t = parse_tokenizer(trained({.vocab = 300, .pattern = pattern}), "", pattern);
    for (const std::string_view text : kTexts) {
      EXPECT_EQ(t->decode(t->encode(text)), repaired_utf8(text)) << pattern;
    }
  }
}

TEST(TrainBpe, RefusesBadSettings) {
  EXPECT_THROW(trained({.vocab = 256}), Error);
  EXPECT_THROW(trained({.vocab = 300, .pattern = "gpt9"}), Error);
  EXPECT_THROW(trained({.vocab = 300, .special = {"<a>", "<a>"}}), Error);
  EXPECT_THROW(trained({.vocab = 300, .special = {"a"}}), Error);
}

TEST(Tokenizers, F161_ANameThatCannotBeAskedForIsAnErrorOfData) {
  const testing::TemporaryFolder folder;
  const std::string loop = folder / "loop";
  std::filesystem::create_symlink(loop, loop);
  for (const std::string& name : {loop, folder / std::string(300, 'a')}) {
    try {
      open_tokenizer(name);
      FAIL();
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_class(), ExitClass::kData) << e.what();
      EXPECT_TRUE(std::string(e.what()).starts_with(name)) << e.what();
    }
  }
}

}  // namespace
}  // namespace troupe
