#include "troupe/data/tokens/token_file.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "troupe/data/files/retry.h"
#include "troupe/data/tokens/token_writer.h"
#include "troupe/testing/files.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

using testing::bytes_of_file;
using testing::from_hex_text;
using testing::has;
using testing::put_file;
using testing::refusal_code;
using testing::TemporaryFolder;

// Documents [5,6,7], [] and [8,9] as u16.
const std::string kGoldenIndex = from_hex_text(
    "4d4d49444944580000"
    "0100000000000000"
    "08"
    "0200000000000000"
    "0400000000000000"
    "0300000002000000"
    "00000000000000000600000000000000"
    "0000000000000000010000000000000001000000000000000200000000000000");
const std::string kGoldenTokens = from_hex_text("05000600070008000900");

struct Golden : ::testing::Test {
  TemporaryFolder folder;
  std::string prefix = folder.path() + "/corpus";

  void put(const std::string& index, const std::string& tokens = kGoldenTokens) const {
    put_file(prefix + ".idx", index);
    put_file(prefix + ".bin", tokens);
  }
  // What opening says after `bytes` stands at `offset` of the golden index.
  std::string refusal_with(size_t offset, const std::string& bytes) const {
    std::string index = kGoldenIndex;
    index.replace(offset, bytes.size(), bytes);
    put(index);
    return refusal();
  }
  std::string refusal() const {
    return refusal_code(Code::kBadTokenFile, [&] { TokenFile file(prefix); });
  }
};

template <class T>
std::string le(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

std::vector<int32_t> all_tokens(const TokenSource& source) {
  std::vector<int32_t> out(static_cast<size_t>(source.num_tokens()));
  source.read(0, out);
  return out;
}

TEST_F(Golden, WriterMakesTheGoldenBytes) {
  Fs fs;
  TokenWriter writer(fs, {.prefix = prefix, .type = TokenType::kU16});
  const std::vector<std::vector<int32_t>> documents{{5, 6, 7}, {}, {8, 9}};
  for (const auto& ids : documents) {
    writer.add_tokens(ids);
    if (!ids.empty()) writer.end_sequence();
    writer.end_document();
  }
  writer.publish();
  EXPECT_EQ(bytes_of_file(prefix + ".idx"), kGoldenIndex);
  EXPECT_EQ(bytes_of_file(prefix + ".bin"), kGoldenTokens);
  EXPECT_FALSE(std::filesystem::exists(TokenWriter::folder(prefix)));
}

TEST_F(Golden, ReaderReadsTheGoldenBytes) {
  put(kGoldenIndex);
  const TokenFile file(prefix + ".idx");
  EXPECT_EQ(file.num_sequences(), 2);
  EXPECT_EQ(file.index().num_documents(), 3);
  EXPECT_EQ(file.index().type(), TokenType::kU16);
  EXPECT_FALSE(file.index().has_modes());
  EXPECT_EQ(all_tokens(file), (std::vector<int32_t>{5, 6, 7, 8, 9}));
  EXPECT_EQ(file.sequence_at(2), 0);
  EXPECT_EQ(file.sequence_at(3), 1);
  EXPECT_EQ(file.starts_between(0, 5), std::vector<int64_t>{3});
  EXPECT_EQ(file.starts_between(3, 5), std::vector<int64_t>{});
}

TEST_F(Golden, ModesAreToldByTheSizeAlone) {
  put(kGoldenIndex + std::string(2, '\0'));
  EXPECT_TRUE(TokenFile(prefix).index().has_modes());
}

TEST_F(Golden, SequencesMayLeaveGapsInTheTokens) {
  std::string index = kGoldenIndex;
  index.replace(50, 8, le(int64_t{10}));
  put(index, kGoldenTokens + from_hex_text("0a000b00"));
  const TokenFile file(prefix);
  EXPECT_FALSE(file.index().is_contiguous());
  EXPECT_EQ(all_tokens(file), (std::vector<int32_t>{5, 6, 7, 10, 11}));
  EXPECT_EQ(file.starts_between(1, 5), std::vector<int64_t>{3});
}

TEST_F(Golden, EveryTypeIsReadAsItIs) {
  const std::map<TokenType, int32_t> largest{
      {TokenType::kU8, 255},    {TokenType::kI8, 127},         {TokenType::kI16, 32767},
      {TokenType::kU16, 65535}, {TokenType::kI32, 2000000000}, {TokenType::kI64, 2000000000}};
  for (const auto& [type, id] : largest) {
    Fs fs;
    TokenWriter writer(fs, {.prefix = prefix, .type = type, .replace = true});
    writer.add_tokens(std::vector<int32_t>{0, 1, id});
    writer.end_sequence();
    writer.end_document();
    writer.publish();
    EXPECT_EQ(all_tokens(TokenFile(prefix)), (std::vector<int32_t>{0, 1, id})) << name(type);
  }
}

TEST(TokenTypes, AVocabularyTakesTheTypeThatMegatronsToolsChoose) {
  EXPECT_EQ(token_type_for(65499), TokenType::kU16);
  EXPECT_EQ(token_type_for(65500), TokenType::kI32);
}

TEST_F(Golden, F53_MagicVersionAndTypeHaveTheirOwnMessages) {
  EXPECT_PRED2(has, refusal_with(0, "MMIDIDY"), "at byte 0: E3101 does not begin with MMIDIDX");
  EXPECT_PRED2(has, refusal_with(9, le(uint64_t{2})), "at byte 9: E3101 version 2 is not 1");
  EXPECT_PRED2(has, refusal_with(17, "\x09"), "at byte 17: E3101 token type 9");
  EXPECT_PRED2(has, refusal_with(17, "\x06"), "f64 which holds no token ids");
  EXPECT_PRED2(has, refusal_with(17, "\x07"), "f32 which holds no token ids");
}

TEST_F(Golden, F54_CountsBeyondTheFileAreRefusedBeforeAnythingIsRead) {
  for (const uint64_t count : {uint64_t{1} << 32, uint64_t{1} << 63, ~uint64_t{0}, uint64_t{3}}) {
    EXPECT_PRED2(has, refusal_with(18, le(count)), "at byte 18: E3101 " + std::to_string(count));
    EXPECT_PRED2(has, refusal_with(26, le(count)), std::to_string(count) + " document entries");
  }
  EXPECT_PRED2(has, refusal_with(26, le(uint64_t{0})), "no document entries");
  // 12 S overflows to a small number.
  EXPECT_PRED2(has, refusal_with(18, le(uint64_t{0x1555555555555556})), "need more than");
}

TEST_F(Golden, F55_DamagedArraysAreRefusedWithTheirPlace) {
  EXPECT_PRED2(has, refusal_with(34, le(int32_t{-1})),
               "at byte 34: E3101 sequence 0 has length -1");
  EXPECT_PRED2(has, refusal_with(50, le(int64_t{-2})), "sequence 1 begins at -2 before");
  EXPECT_PRED2(has, refusal_with(50, le(int64_t{7})), "sequence 1 begins at 7 no multiple of 2");
  EXPECT_PRED2(has, refusal_with(38, le(int32_t{3})), "sequence 1 begins at 6 and has 3 tokens");
  EXPECT_PRED2(has, refusal_with(50, le(int64_t{4})),
               "sequence 1 begins at 4 inside one before it");
  EXPECT_PRED2(has, refusal_with(50, le(int64_t{1} << 62)), "the .bin has 10 bytes");
  EXPECT_PRED2(has, refusal_with(58, le(int64_t{1})), "at byte 58: E3101 document entry 0 is 1");
  EXPECT_PRED2(has, refusal_with(66, le(int64_t{2})), "document entry 2 is 1 after 2");
  EXPECT_PRED2(has, refusal_with(82, le(int64_t{1})), "document entry 3 is 1");
}

TEST_F(Golden, F56_TheBinMustHoldWhatTheIndexSays) {
  put(kGoldenIndex, kGoldenTokens.substr(0, 8));
  EXPECT_PRED2(has, refusal(), "the .bin has 8 bytes");
  put(kGoldenIndex, kGoldenTokens + 'x');
  EXPECT_PRED2(has, refusal(), "has 11 bytes, no multiple of the 2");
  put(kGoldenIndex, kGoldenTokens + "xx");
  const auto sink = std::make_shared<testing::Lines>();
  const TokenFile longer(prefix, Log({sink}));
  EXPECT_EQ(sink->text, prefix + ".bin has 12 bytes; its index uses 10 of them\n");
  EXPECT_EQ(longer.num_tokens(), 5);
}

TEST_F(Golden, EveryCutOfTheIndexIsRefused) {
  for (size_t size = 0; size < kGoldenIndex.size(); ++size) {
    put(kGoldenIndex.substr(0, size));
    EXPECT_NE(refusal(), "") << size;
  }
}

// Whatever one bit is flipped, the file is refused or still reads within its bounds.
TEST_F(Golden, EveryFlippedBitIsRefusedOrHarmless) {
  for (size_t bit = 0; bit < 8 * kGoldenIndex.size(); ++bit) {
    std::string index = kGoldenIndex;
    index[bit / 8] = static_cast<char>(index[bit / 8] ^ (1 << bit % 8));
    put(index);
    try {
      const TokenFile file(prefix);
      all_tokens(file);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kBadTokenFile) << bit << ' ' << error.what();
    }
  }
}

TEST_F(Golden, F57_ATokenBeyondTheVocabularyIsNamedWithItsPlace) {
  put(kGoldenIndex);
  const TokenFile file(prefix);
  EXPECT_EQ(scan_tokens(file, 10), 5);
  const std::string what = refusal_code(Code::kBadToken, [&] { scan_tokens(file, 9); });
  EXPECT_PRED2(has, what, prefix + ".bin: E3102 sequence 1 has at its position 1 the token id 9");
}

TEST_F(Golden, F57_ANegativeTokenIsRefused) {
  std::string index = kGoldenIndex;
  index[17] = 3;  // i16
  std::string tokens = kGoldenTokens;
  tokens.replace(2, 2, "\xff\xff");
  put(index, tokens);
  const std::string what =
      refusal_code(Code::kBadToken, [&] { scan_tokens(TokenFile(prefix), 100, 1); });
  EXPECT_PRED2(has, what, "sequence 0 has at its position 1 the token id -1");
}

TEST_F(Golden, F59_AFileThatIsCutWhileOpenIsAnErrorAndNoSignal) {
  put(kGoldenIndex);
  const TokenFile file(prefix);
  std::filesystem::resize_file(prefix + ".bin", 4);
  std::vector<int32_t> ids(5);
  const std::string what = refusal_code(Code::kDataChanged, [&] { file.read(0, ids); });
  EXPECT_EQ(what, prefix + ".bin: E3104 has 4 bytes now and had 10 when it was opened");
  EXPECT_EQ(exit_class(Code::kDataChanged), ExitClass::kData);
}

TEST_F(Golden, F59_AFileThatIsReplacedOrWrittenToIsNoticed) {
  put(kGoldenIndex);
  const TokenFile file(prefix);
  file.require_unchanged();
  put_file(prefix + ".new", kGoldenTokens);
  std::filesystem::rename(prefix + ".new", prefix + ".bin");
  EXPECT_PRED2(has, refusal_code(Code::kDataChanged, [&] { file.require_unchanged(); }),
               "replaced");
  const TokenFile again(prefix);
  std::filesystem::last_write_time(
      prefix + ".idx", std::filesystem::file_time_type::clock::now() + std::chrono::seconds(5));
  EXPECT_PRED2(has, refusal_code(Code::kDataChanged, [&] { again.require_unchanged(); }),
               "written to");
}

TEST(Retry, F60_AReadIsTriedThreeTimes) {
  const Pauses pauses{};
  int tries = 0;
  const auto fails = [&](int times) {
    return [&tries, times] {
      if (++tries <= times) fail(Code::kUnreadableData, "x.bin", "Input/output error");
    };
  };
  retry(
      fails(2), [] {}, pauses);
  EXPECT_EQ(tries, 3);
  tries = 0;
  EXPECT_THROW(retry(
                   fails(3), [] {}, pauses),
               Error);
  EXPECT_EQ(tries, 3);
  tries = 0;
  const auto changed = [] { fail(Code::kDataChanged, "x.bin", "was cut"); };
  EXPECT_EQ(refusal_code(Code::kDataChanged, [&] { retry(fails(3), changed, pauses); }),
            "x.bin: E3104 was cut");
  EXPECT_EQ(tries, 1);
}

TEST_F(Golden, AnotherFileHasAnotherFingerprint) {
  put(kGoldenIndex);
  const std::string one = TokenFile(prefix).fingerprint();
  EXPECT_EQ(TokenFile(prefix).fingerprint(), one);
  std::string tokens = kGoldenTokens;
  tokens[4] = 1;
  put(kGoldenIndex, tokens);
  EXPECT_NE(TokenFile(prefix).fingerprint(), one);
}

TEST_F(Golden, ARangeOfSequencesIsASource) {
  put(kGoldenIndex);
  const TokenSourcePtr whole = std::make_shared<TokenFile>(prefix);
  const TokenSourcePtr last = sequence_range(whole, 1, 2);
  EXPECT_EQ(all_tokens(*last), (std::vector<int32_t>{8, 9}));
  EXPECT_EQ(last->start(1), 2);
  EXPECT_EQ(sequence_range(whole, 0, 2), whole);
  EXPECT_EQ(sequence_range(whole, 1, 1)->num_tokens(), 0);
}

TEST_F(Golden, WeightsStandBesideTheTokens) {
  put(kGoldenIndex);
  EXPECT_FALSE(TokenFile(prefix).has_weights());
  put_file(prefix + ".weights", std::string("\0\1\1\0\1", 5));
  std::vector<float> weights(3);
  TokenFile(prefix).read_weights(2, weights);
  EXPECT_EQ(weights, (std::vector<float>{1, 0, 1}));
  put_file(prefix + ".weights", "123");
  EXPECT_PRED2(has, refusal(), "has 3 bytes; one for each of the 5 tokens");
}

TEST_F(Golden, NothingIsOverwritten) {
  put(kGoldenIndex);
  Fs fs;
  const std::string what =
      refusal_code(Code::kOutputExists, [&] { TokenWriter writer(fs, {.prefix = prefix}); });
  EXPECT_PRED2(has, what, ".idx: E3109 exists");
}

TEST_F(Golden, OnlyOneProcessWritesAnOutput) {
  Fs fs;
  const TokenWriter first(fs, {.prefix = prefix});
  const std::string what =
      refusal_code(Code::kOutputExists, [&] { TokenWriter second(fs, {.prefix = prefix}); });
  EXPECT_PRED2(has, what, "another process");
}

TEST_F(Golden, AWriterGoesOnWhereItWasSynced) {
  Fs fs;
  const TokenOutput output{.prefix = prefix, .type = TokenType::kU16};
  TokenCounts at;
  {
    TokenWriter writer(fs, output);
    writer.add_tokens(std::vector<int32_t>{5, 6, 7});
    writer.end_sequence();
    writer.end_document();
    writer.sync();
    at = writer.counts();
    writer.add_tokens(std::vector<int32_t>{99, 99});
    writer.end_sequence();
    writer.sync();
  }
  ASSERT_TRUE(TokenWriter::can_resume(output, at));
  TokenWriter writer(fs, output, at);
  writer.end_document();
  writer.add_tokens(std::vector<int32_t>{8, 9});
  writer.end_sequence();
  writer.end_document();
  writer.publish();
  EXPECT_EQ(bytes_of_file(prefix + ".idx"), kGoldenIndex);
  EXPECT_EQ(bytes_of_file(prefix + ".bin"), kGoldenTokens);
  EXPECT_FALSE(TokenWriter::can_resume(output, at));
}

}  // namespace
}  // namespace troupe
