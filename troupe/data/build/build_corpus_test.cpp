#include "troupe/data/build/build_corpus.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>

#include "troupe/core/config/config.h"
#include "troupe/data/build/convert.h"
#include "troupe/data/build/corpus.h"
#include "troupe/data/tokens/token_file.h"
#include "troupe/testing/fault_fs.h"
#include "troupe/testing/files.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;
using testing::bytes_of_file;
using testing::FaultFs;
using testing::has;
using testing::put_file;
using testing::refusal_code;
using testing::TemporaryFolder;
using Ids = std::vector<int32_t>;

void encode_bytes(std::string_view text, Ids& ids) {
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
}

const BuildTokenizer kBytes{.encode = encode_bytes, .vocab = 257, .eod = 256, .fingerprint = "b"};

Ids ids_of(const std::string& text) {
  Ids ids;
  encode_bytes(text, ids);
  ids.push_back(256);
  return ids;
}

struct Said : LogSink {
  void write(Level, std::string_view line) override { text += std::string(line) + '\n'; }
  std::string text;
};

struct Corpus : ::testing::Test {
  TemporaryFolder folder;
  Fs fs;
  BuildConfig config{.input = {folder / "in.jsonl"}, .output = folder / "out"};

  BuildResult build(const BuildLimits& limits = {}) {
    return build_corpus(config, kBytes, fs, {}, limits);
  }
  std::vector<Ids> documents() const {
    const TokenFile file(config.output);
    std::vector<int64_t> bounds(static_cast<size_t>(file.index().num_documents() + 1));
    file.index().documents(0, bounds);
    std::vector<Ids> out;
    for (size_t d = 0; d + 1 < bounds.size(); ++d) {
      const int64_t begin = file.start(bounds[d]), end = file.start(bounds[d + 1]);
      file.read(begin, out.emplace_back(static_cast<size_t>(end - begin)));
    }
    return out;
  }
  std::string output() const {
    return bytes_of_file(config.output + ".idx") + bytes_of_file(config.output + ".bin");
  }
  void put_random_lines(int count) const {
    std::mt19937 random(1);
    std::string text;
    for (int i = 0; i < count; ++i) {
      text += "{\"id\": " + std::to_string(i) + ", \"text\": \"";
      for (auto left = random() % 300; left > 0; --left) text += "abc xyz"[random() % 7];
      text += "\"}\n";
    }
    put_file(folder / "in.jsonl", text);
  }
};

TEST_F(Corpus, JsonlBecomesTheGoldenBytes) {
  put_file(folder / "in.jsonl",
           "{\"text\": \"\\u0005\\u0006\\u0007\"}\n{\"text\": \"\"}\n"
           "{\"n\": [1, {\"text\": 2}], \"text\": \"\\u0008\\t\"}");
  config.append_eod = false;
  const BuildResult result = build();
  EXPECT_EQ(bytes_of_file(config.output + ".bin"), testing::from_hex_text("05000600070008000900"));
  EXPECT_EQ(bytes_of_file(config.output + ".idx"),
            testing::from_hex_text("4d4d49444944580000010000000000000008020000000000000004000000000"
                                   "000000300000002000000000000000000000006000000000000000000000000"
                                   "000000010000000000000001000000000000000200000000000000"));
  EXPECT_EQ(result.info.documents, 3);
  EXPECT_EQ(result.sequences, 2);
  EXPECT_EQ(read_build_info(config.output)->tokenizer, "b");
}

TEST_F(Corpus, TheEndOfDocumentIdIsNotForEmptyOnes) {
  put_file(folder / "in.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\"}\n");
  build();
  EXPECT_EQ(documents(), (std::vector<Ids>{{97, 256}, {}}));
}

TEST_F(Corpus, AnyNumberOfWorkersMakesTheSameBytes) {
  put_random_lines(3000);
  std::string first;
  for (const int workers : {1, 2, 3, 8}) {
    config.workers = workers;
    config.replace = true;
    build({.piece = 5000});
    if (first.empty()) first = output();
    EXPECT_TRUE(output() == first) << workers;
  }
  EXPECT_EQ(documents().size(), 3000u);
}

TEST_F(Corpus, PiecesOfAnySizeMakeTheSameBytes) {
  put_random_lines(200);
  build();
  const std::string whole = output();
  config.replace = true;
  for (const int64_t piece : {1, 7, 64, 1000}) {
    build({.piece = piece});
    EXPECT_TRUE(output() == whole) << piece;
  }
}

TEST_F(Corpus, FoldersPatternsAndFilesAreReadInOrder) {
  stdfs::create_directories(folder / "d/e");
  put_file(folder / "d/b.txt", "b");
  put_file(folder / "d/a.txt", "a");
  put_file(folder / "d/e/c.txt", "c");
  put_file(folder / "d/.hidden", "x");
  put_file(folder / "z.txt", "z");
  config.input = {folder / "z.txt", folder / "d", folder / "d/[ab].txt"};
  build();
  EXPECT_EQ(documents(), (std::vector<Ids>{ids_of("z"), ids_of("a"), ids_of("b"), ids_of("c"),
                                           ids_of("a"), ids_of("b")}));
}

TEST_F(Corpus, F161_CirclesPipesAndLongNamesAreSaid) {
  const std::string loop = folder / "loop", pipe = folder / "pipe";
  std::filesystem::create_symlink(loop, loop);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& name :
       {loop, pipe, folder / std::string(300, 'a'), std::string("/dev/zero")}) {
    config.input = {name};
    const std::string refusal = refusal_code(Code::kUnreadableData, [&] { build(); });
    EXPECT_TRUE(refusal.starts_with(name)) << refusal;
  }
}

TEST_F(Corpus, LinesAreDocumentsIfAsked) {
  put_file(folder / "t.txt", "\xEF\xBB\xBFone\r\n\n  \ntwo");
  config.input = {folder / "t.txt"};
  config.format = CorpusFormat::kLines;
  build();
  EXPECT_EQ(documents(), (std::vector<Ids>{ids_of("one"), ids_of("two")}));
}

TEST_F(Corpus, ChatsTeachWhatTheAssistantSays) {
  put_file(folder / "in.jsonl",
           "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, "
           "{\"role\": \"assistant\", \"content\": \"Yo\", \"extra\": null}]}\n");
  config.format = CorpusFormat::kChat;
  config.key = "messages";
  config.chat = {.open = "<{role}>", .close = ";", .learn = "assistant"};
  build();
  const TokenFile file(config.output);
  EXPECT_EQ(documents(), (std::vector<Ids>{ids_of("<user>Hi;<assistant>Yo;")}));
  std::vector<float> weights(static_cast<size_t>(file.num_tokens()));
  file.read_weights(0, weights);
  //                                     < u s e r > H i ;
  EXPECT_EQ(weights, (std::vector<float>{0, 0, 0, 0, 0, 0, 0, 0, 0,
                                         // < a s s i s t a n t >
                                         0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1,
                                         1}));  // Y o ; and the end
}

TEST_F(Corpus, F63_BadLinesStopOrAreCounted) {
  const std::string good = "{\"text\": \"ok\"}\n";
  const std::vector<std::pair<std::string, std::string>> kinds{
      {"{\"text\": \"x\n", "a string without its end"},
      {"{\"txt\": \"x\"}\n", "has no \"text\""},
      {"{\"text\": null}\n", "\"text\" is not a string"},
      {"{\"text\": 3}\n", "\"text\" is not a string"},
      {"[1]\n", "is not a JSON object"},
      {"{\"text\": \"x\"} y\n", "more after the end"},
      {"{\"text\": \"\\x\"}\n", "an escape that JSON does not have"},
      {"{\"text\": \"" + std::string(5000, 'a') + "\"}\n", "more than `longest`"},
      {std::string(100, '[') + "\n", "is not a JSON object"},
      {"{\"a\": " + std::string(100, '[') + "\n", "nesting over 64"}};
  config.longest = {4000};
  config.replace = true;
  for (const auto& [line, what] : kinds) {
    std::string text = good + good;
    text += line;
    text += good;
    put_file(folder / "in.jsonl", text);
    config.on_bad = OnBad::kStop;
    const std::string refusal = refusal_code(Code::kBadDocument, [&] { build({.piece = 100}); });
    EXPECT_PRED2(has, refusal, (folder / "in.jsonl") + ":3: E3106");
    EXPECT_PRED2(has, refusal, what);
    config.on_bad = OnBad::kSkip;
    const BuildResult result = build({.piece = 100});
    EXPECT_EQ(result.info.skipped, 1) << line;
    EXPECT_EQ(result.info.documents, 3) << line;
    ASSERT_EQ(result.bad.size(), 1u);
    EXPECT_PRED2(has, result.bad[0], "in.jsonl:3");
  }
}

TEST_F(Corpus, F63_ByteOrderMarkReturnsAndNoFinalNewlineAreRead) {
  put_file(folder / "in.jsonl",
           "\xEF\xBB\xBF{\"text\": \"a\"}\r\n\r\n{\"text\": \"b\"}\r\n{\"text\": \"c\"}");
  build();
  EXPECT_EQ(documents(), (std::vector<Ids>{ids_of("a"), ids_of("b"), ids_of("c")}));
}

TEST_F(Corpus, F63_ALongLineCostsNoMemory) {
  put_file(folder / "in.jsonl",
           "{\"text\": \"a\"}\n" + std::string(20 << 20, 'x') + "\n{\"text\": \"b\"}\n");
  config.longest = {1000};
  config.on_bad = OnBad::kSkip;
  const BuildResult result = build({.piece = 1000});
  EXPECT_EQ(documents(), (std::vector<Ids>{ids_of("a"), ids_of("b")}));
  EXPECT_PRED2(has, result.bad[0], ":2: has 20971521 bytes");
}

TEST_F(Corpus, F64_NulsBadUtf8AndHalfSurrogatesAreDefined) {
  put_file(folder / "in.jsonl",
           "{\"text\": \"a\\u0000b\xff\\ud800c\\udc00\\ud83d\\ude00\\ud800\\u0041\"}\n");
  build();
  // The bytes tokenizer shows what the text was: NUL stays, a bad byte passes, halves are U+FFFD.
  std::string text("a\0b\xff", 4);
  text +=
      "\xEF\xBF\xBD"
      "c"
      "\xEF\xBF\xBD"
      "\xF0\x9F\x98\x80"
      "\xEF\xBF\xBD"
      "A";
  EXPECT_EQ(documents(), std::vector<Ids>{ids_of(text)});
}

// The process dies at every fourth operation in turn; the same command then ends with the same
// bytes, and in between there is never an .idx without the whole .bin.
TEST_F(Corpus, F65_KilledAnywhereTheSameCommandFinishes) {
  put_random_lines(60);
  const BuildLimits limits{.piece = 500, .bytes_between_notes = 2000};
  build(limits);
  const std::string expected = output();
  int deaths = 0, resumed = 0;
  for (int n = 1;; n += 4) {
    for (const char* suffix : {".idx", ".bin", ".json"}) stdfs::remove(config.output + suffix);
    const pid_t child = fork();
    if (child == 0) {
      FaultFs faulty;
      faulty.at = n, faulty.action = FaultFs::Action::kDie;
      build_corpus(config, kBytes, faulty, {}, limits);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WEXITSTATUS(status) != 99) break;
    ++deaths;
    if (stdfs::exists(config.output + ".idx")) {
      EXPECT_TRUE(output() == expected) << n;
    } else {
      resumed += build(limits).resumed;
      EXPECT_TRUE(output() == expected) << n;
    }
  }
  EXPECT_GT(deaths, 15);
  EXPECT_GT(resumed, 8);
}

TEST_F(Corpus, F65_AnotherCorpusBeginsAnew) {
  put_random_lines(60);
  const BuildLimits limits{.piece = 500, .bytes_between_notes = 2000};
  const pid_t child = fork();
  if (child == 0) {
    FaultFs faulty;
    faulty.at = 60, faulty.action = FaultFs::Action::kDie;
    build_corpus(config, kBytes, faulty, {}, limits);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_EQ(WEXITSTATUS(status), 99);
  put_file(folder / "in.jsonl", "{\"text\": \"new\"}\n");
  EXPECT_FALSE(build(limits).resumed);
  EXPECT_EQ(documents(), std::vector<Ids>{ids_of("new")});
}

TEST_F(Corpus, AFullDiskIsSaidAndLeavesNoIndex) {
  put_random_lines(60);
  for (int n = 1; n < 20; ++n) {
    FaultFs faulty;
    faulty.at = n, faulty.error = ENOSPC;
    try {
      build_corpus(config, kBytes, faulty, {}, {.piece = 500, .bytes_between_notes = 2000});
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_class(), ExitClass::kResource) << error.what();
      EXPECT_FALSE(stdfs::exists(config.output + ".idx"));
    }
    stdfs::remove(config.output + ".idx");
  }
}

// The documents of a set of tokens, as text.
std::vector<std::string> texts_of(const std::string& prefix) {
  const TokenFile file(prefix);
  std::vector<int64_t> bounds(static_cast<size_t>(file.index().num_documents() + 1));
  file.index().documents(0, bounds);
  std::vector<std::string> out;
  for (size_t d = 0; d + 1 < bounds.size(); ++d) {
    const int64_t begin = file.start(bounds[d]), end = file.start(bounds[d + 1]);
    Ids ids(static_cast<size_t>(end - begin));
    file.read(begin, ids);
    std::string& text = out.emplace_back();
    for (const int32_t id : ids) {
      if (id < 256) text += static_cast<char>(id);
    }
  }
  return out;
}

TEST_F(Corpus, APartOfTheDocumentsIsHeldOutWhateverTheirOrder) {
  put_random_lines(2000);
  build();
  std::vector<std::string> all = texts_of(config.output);
  config.replace = true;
  config.valid = 0.1;
  std::vector<std::string> held_out;
  for (const int workers : {1, 3}) {
    config.workers = workers;
    const BuildResult result = build({.piece = 5000});
    const std::vector<std::string> valid = texts_of(valid_prefix(config.output));
    std::vector<std::string> together = texts_of(config.output);
    EXPECT_EQ(std::ssize(together), result.info.documents);
    EXPECT_EQ(std::ssize(valid), result.valid.documents);
    EXPECT_EQ(read_build_info(valid_prefix(config.output))->tokenizer, "b");
    EXPECT_GT(valid.size(), 150u);  // 200 of 2000 are expected, with a deviation of 13
    EXPECT_LT(valid.size(), 250u);
    together.insert(together.end(), valid.begin(), valid.end());
    std::ranges::sort(together);
    std::ranges::sort(all);
    EXPECT_TRUE(together == all);
    EXPECT_TRUE(held_out.empty() || valid == held_out);
    held_out = valid;
  }
  // In another order, and beside others, a document is where it was.
  const std::string lines = bytes_of_file(folder / "in.jsonl");
  const size_t middle = lines.find('\n', lines.size() / 2) + 1;
  put_file(folder / "in.jsonl",
           "{\"text\": \"new\"}\n" + lines.substr(middle) + lines.substr(0, middle));
  build();
  std::vector<std::string> again = texts_of(valid_prefix(config.output));
  std::erase(again, "new");
  std::ranges::sort(again);
  std::ranges::sort(held_out);
  EXPECT_TRUE(again == held_out);
}

// Whole documents are held out: with one that has most of the text, whichever side it is on.
TEST_F(Corpus, AShareThatIsFarFromThatOfTheTokensIsToldInBoth) {
  const auto lines = [](int count, const std::string& first) {
    std::string text;
    for (int i = 0; i < count; ++i) {
      text += "{\"text\": \"line " + std::to_string(1000 + i) + (i == 0 ? first : "") + "\"}\n";
    }
    return text;
  };
  config.valid = 0.1;
  config.replace = true;
  const auto warning_of = [&](const std::string& text) {
    put_file(folder / "in.jsonl", text);
    const auto said = std::make_shared<Said>();
    build_corpus(config, kBytes, fs, Log({said}, Level::kWarning));
    return said->text;
  };
  EXPECT_EQ(warning_of(lines(2000, "")), "");
  const std::string said = warning_of(lines(200, std::string(100000, 'x')));
  EXPECT_PRED2(has, said, "a validation share of 0.1 would be 10200 of 102000 tokens");
  EXPECT_PRED2(has, said, " of 200 documents: whole ones are held out");
}

TEST_F(Corpus, ASplitThatWouldBeEmptyIsRefused) {
  put_file(folder / "in.jsonl", "{\"text\": \"a\"}\n");
  const auto refusal = [&](Code code) { return refusal_code(code, [&] { build(); }); };
  config.valid = 1e-9;
  EXPECT_PRED2(has, refusal(Code::kTooFewTokens), "takes none of");
  EXPECT_FALSE(stdfs::exists(config.output + ".idx"));
  config.valid = 1;
  EXPECT_PRED2(has, refusal(Code::kBadValue), "0 to less than 1");
}

TEST_F(Corpus, F65_ASplitKilledAnywhereIsFinishedByTheSameCommand) {
  put_random_lines(60);
  config.valid = 0.3;
  const BuildLimits limits{.piece = 500, .bytes_between_notes = 2000};
  const auto both = [&] {
    const std::string valid = valid_prefix(config.output);
    return output() + bytes_of_file(valid + ".idx") + bytes_of_file(valid + ".bin");
  };
  build(limits);
  const std::string expected = both();
  int deaths = 0;
  for (int n = 1;; n += 5) {
    for (const char* suffix : {".idx", ".bin", ".json"}) {
      stdfs::remove(config.output + suffix);
      stdfs::remove(valid_prefix(config.output) + suffix);
    }
    const pid_t child = fork();
    if (child == 0) {
      FaultFs faulty;
      faulty.at = n, faulty.action = FaultFs::Action::kDie;
      build_corpus(config, kBytes, faulty, {}, limits);
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (WEXITSTATUS(status) != 99) break;
    ++deaths;
    if (!stdfs::exists(config.output + ".idx")) build(limits);
    EXPECT_TRUE(both() == expected) << n;
  }
  EXPECT_GT(deaths, 15);
}

TEST_F(Corpus, BadUtf8IsCountedWithItsPlace) {
  put_file(
      folder / "in.jsonl",
      "{\"text\": \"a\"}\n{\"text\": \"b\xff\"}\n{\"text\": \"\xc3\xa9\"}\n{\"text\": \"\xc3\"}\n");
  const auto said = std::make_shared<Said>();
  const BuildResult result = build_corpus(config, kBytes, fs, Log({said}));
  EXPECT_EQ(result.not_utf8, 2);
  EXPECT_EQ(result.info.documents, 4);
  EXPECT_PRED2(
      has, said->text,
      "2 documents hold bytes that are not UTF-8, the first is " + (folder / "in.jsonl") + ":2");
}

TEST_F(Corpus, ChatsOfWhichNothingIsLearnedAreToldAndTheirKeyIsKnown) {
  const auto said = std::make_shared<Said>();
  config.format = CorpusFormat::kChat;
  put_file(folder / "in.jsonl",
           "{\"messages\": [{\"role\": \"human\", \"content\": \"a\"},"
           " {\"role\": \"gpt\", \"content\": \"b\"}]}\n");
  EXPECT_EQ(build_corpus(config, kBytes, fs, Log({said})).learned, 0);
  EXPECT_PRED2(has, said->text, "nothing is learned: no message has the role \"assistant\"");
  said->text.clear();
  config.chat.learn = "gpt";
  config.replace = true;
  EXPECT_GT(build_corpus(config, kBytes, fs, Log({said})).learned, 0);
  EXPECT_EQ(said->text.find("nothing is learned"), std::string::npos);
}

TEST_F(Corpus, FilesOfDifferentKindsAreEachReadAsWhatTheyAre) {
  stdfs::create_directories(folder / "d");
  put_file(folder / "d/1.txt", "one\ntext\n");
  put_file(folder / "d/2.jsonl", "{\"text\": \"two\"}\n{\"text\": \"three\"}\n");
  put_file(folder / "d/3.csv", "id,text\n7,\"four, and\nmore\"\n8,five\n");
  put_file(folder / "d/4.tsv", "text\tid\nsix\t1\n");
  put_file(folder / "d/5.json",
           "[{\"text\": \"seven\"},\n {\"id\": [1, 2],\n  \"text\": \"eight\"}]\n");
  config.input = {folder / "d"};
  const std::vector<Ids> expected{ids_of("one\ntext\n"),     ids_of("two"),  ids_of("three"),
                                  ids_of("four, and\nmore"), ids_of("five"), ids_of("six"),
                                  ids_of("seven"),           ids_of("eight")};
  for (const int64_t piece : {3, 40, 1 << 20}) {
    config.replace = true;
    build({.piece = piece});
    EXPECT_EQ(documents(), expected) << piece;
  }
}

TEST_F(Corpus, ABadRowOfATableIsNamedByItsNumber) {
  put_file(folder / "t.csv", "id,text\n1,a\n2\n3,b\n");
  config.input = {folder / "t.csv"};
  EXPECT_PRED2(has, refusal_code(Code::kBadDocument, [&] { build(); }), "t.csv: row 2");
  config.on_bad = OnBad::kSkip;
  EXPECT_EQ(build().info.skipped, 1);
  EXPECT_EQ(documents(), (std::vector<Ids>{ids_of("a"), ids_of("b")}));
}

TEST_F(Corpus, WhatDatasetsWritesBesideTablesIsNoText) {
  stdfs::create_directories(folder / "d");
  stdfs::create_directories(folder / "s");
  for (const std::string name : {"README.md", "dataset_info.json", "state.json"}) {
    put_file(folder / ("d/" + name), "{}");
  }
  put_file(folder / "d/data-00000-of-00001.arrow", "ARROW1");
  EXPECT_EQ(corpus_files({folder / "d"}),
            std::vector<std::string>{folder / "d/data-00000-of-00001.arrow"});
  put_file(folder / "s/dataset_dict.json", "{}");
  EXPECT_PRED2(has, refusal_code(Code::kUnreadableData, [&] { corpus_files({folder / "s"}); }),
               "/train");
}

TEST_F(Corpus, BadSettingsAreRefused) {
  put_file(folder / "in.jsonl", "{}");
  put_file(folder / "x.gz", "");
  const auto refusal = [&](Code code) { return refusal_code(code, [&] { build(); }); };
  config.input = {};
  EXPECT_PRED2(has, refusal(Code::kBadValue), "input");
  config.input = {folder / "none.jsonl"};
  EXPECT_PRED2(has, refusal(Code::kUnreadableData), "none.jsonl");
  config.input = {folder / "*.none"};
  EXPECT_PRED2(has, refusal(Code::kUnreadableData), "matches no file");
  config.input = {folder / "x.gz"};
  EXPECT_PRED2(has, refusal(Code::kUnreadableData), "is named as compressed");
  put_file(folder / "x.xz", "");
  config.input = {folder / "x.xz"};
  EXPECT_PRED2(has, refusal(Code::kUnreadableData), "is compressed");
  put_file(folder / "t.txt", "text");
  config.input = {folder / "t.txt"};
  config.longest = {2};
  EXPECT_PRED2(has, refusal(Code::kBadDocument), "`format: lines`");
}

TEST_F(Corpus, TheConfigReadsBack) {
  std::ostringstream printed;
  print_config(printed, config);
  BuildConfig back;
  read_config(parse_yaml(printed.str(), "x"), back);
  EXPECT_TRUE(same(back, config));
}

}  // namespace
}  // namespace troupe
