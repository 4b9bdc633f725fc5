#include "troupe/data/build/convert.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "troupe/core/file/hash.h"
#include "troupe/data/text/build_info.h"
#include "troupe/data/tokens/token_file.h"
#include "troupe/testing/files.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

using testing::bytes_of_file;
using testing::has;
using testing::Lines;
using testing::put_file;
using testing::refusal_code;
using testing::TemporaryFolder;
using Ids = std::vector<int32_t>;

template <class T>
std::string le(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

void put_tokens(const std::string& prefix, const std::vector<std::vector<Ids>>& documents,
                TokenType type = TokenType::kU16) {
  Fs fs;
  TokenWriter writer(fs, {.prefix = prefix, .type = type, .replace = true});
  for (const auto& sequences : documents) {
    for (const Ids& ids : sequences) {
      writer.add_tokens(ids);
      writer.end_sequence();
    }
    writer.end_document();
  }
  writer.publish();
}

Ids all_tokens(const std::string& prefix) {
  const TokenFile file(prefix);
  Ids out(static_cast<size_t>(file.num_tokens()));
  file.read(0, out);
  return out;
}

TEST(Merge, IsTheConcatenation) {
  const TemporaryFolder folder;
  const std::vector<std::vector<Ids>> a{{{1, 2}, {3}}, {}}, b{{{4}, {}}, {{5, 6}}};
  put_tokens(folder / "a", a);
  put_tokens(folder / "b", b);
  std::vector<std::vector<Ids>> both = a;
  both.insert(both.end(), b.begin(), b.end());
  put_tokens(folder / "both", both);
  Fs fs;
  const TokenCounts counts = merge_tokens(fs, {folder / "a", folder / "b"}, folder / "m");
  EXPECT_EQ(counts.documents, 4);
  for (const char* suffix : {".idx", ".bin"}) {
    EXPECT_EQ(bytes_of_file(folder / "m" + suffix), bytes_of_file(folder / "both" + suffix));
  }
}

void put_info(const std::string& prefix, const std::string& tokenizer, int64_t tokens) {
  put_file(prefix + ".json", "{\"tokenizer\":\"" + tokenizer + "\",\"vocab\":9,\"documents\":1," +
                                 "\"tokens\":" + std::to_string(tokens) + ",\"skipped\":0}");
}

TEST(Merge, RemembersTheTokenizerAndRefusesTwo) {
  const TemporaryFolder folder;
  put_tokens(folder / "a", {{{1}}});
  put_tokens(folder / "b", {{{1, 2}}});
  put_info(folder / "a", "x", 1);
  put_info(folder / "b", "x", 2);
  Fs fs;
  merge_tokens(fs, {folder / "a", folder / "b"}, folder / "m");
  EXPECT_EQ(read_build_info(folder / "m")->tokenizer, "x");
  EXPECT_EQ(read_build_info(folder / "m")->tokens, 3);
  put_info(folder / "b", "y", 2);
  refusal_code(Code::kOtherTokenizer, [&] {
    merge_tokens(fs, {folder / "a", folder / "b"}, folder / "n");
  });
  EXPECT_FALSE(std::filesystem::exists(folder / "n.idx"));
}

TEST(Ids, AFileOfIdsIsCutBehindEachEndOfDocument) {
  const TemporaryFolder folder;
  std::string bytes;
  for (const uint16_t id : {7, 8, 0, 0, 9, 0, 5}) bytes += le(id);
  put_file(folder / "ids.npy", bytes);
  IdsConfig config{.input = FlatFile{.path = folder / "ids.npy"},
                   .output = folder / "out",
                   .eod = 0,
                   .vocab = 10};
  Fs fs;
  EXPECT_EQ(convert_ids(config, fs).documents, 4);
  put_tokens(folder / "want", {{{7, 8, 0}}, {{0}}, {{9, 0}}, {{5}}});
  for (const char* suffix : {".idx", ".bin"}) {
    EXPECT_EQ(bytes_of_file(folder / "out" + suffix), bytes_of_file(folder / "want" + suffix));
  }
  config.vocab = 9;
  config.output = folder / "small";
  refusal_code(Code::kBadToken, [&] { convert_ids(config, fs); });
}

TEST(Ids, LlmcsHeaderIsRead) {
  const TemporaryFolder folder;
  std::string bytes = le(int32_t{20240520}) + le(int32_t{1}) + le(int32_t{3});
  bytes.resize(1024);
  for (const uint16_t id : {50256, 1, 2}) bytes += le(id);
  put_file(folder / "x.bin", bytes);
  Fs fs;
  const IdsConfig config{.input = LlmcFile{.path = folder / "x.bin"},
                         .output = folder / "out",
                         .eod = 50256,
                         .vocab = 50257};
  EXPECT_EQ(convert_ids(config, fs).documents, 2);
  EXPECT_EQ(all_tokens(folder / "out"), (Ids{50256, 1, 2}));
}

TEST(Merge, TypesMustBeEqual) {
  const TemporaryFolder folder;
  put_tokens(folder / "a", {{{1}}});
  put_tokens(folder / "b", {{{1}}}, TokenType::kI32);
  Fs fs;
  const std::string what = refusal_code(Code::kBadTokenFile, [&] {
    merge_tokens(fs, {folder / "a", folder / "b"}, folder / "m");
  });
  EXPECT_PRED2(has, what, "has tokens of type i32");
}

// The folder that streaming 0.13's MDSWriter makes of tokens [1, 2, 300] and 0 ... 259, with
// hashes=["sha1", "xxh64"].
struct Mds : ::testing::Test {
  TemporaryFolder folder;
  MdsConfig config{.input = folder.path(), .output = folder / "out"};
  std::string shard = golden();
  std::string index =
      R"({"shards": [{"column_encodings": ["int", "str", "ndarray:int32"], )"
      R"("column_names": ["id", "name", "tokens"], "column_sizes": [8, null, null], )"
      R"("compression": null, "format": "mds", "hashes": ["sha1", "xxh64"], )"
      R"("raw_data": {"basename": "shard.00000.mds", "bytes": 1340, "hashes": )"
      R"({"sha1": "0d1fa9632baf00fcbc2a48d6b9276ae22522cf25", "xxh64": "f0fc421819168b10"}}, )"
      R"("samples": 2, "size_limit": 67108864, "version": 2, "zip_data": null}], "version": 2})";

  static std::string golden() {
    std::string out = le(2u) + le(249u) + le(281u) + le(1340u);
    out += R"({"column_encodings": ["int", "str", "ndarray:int32"], "column_names": )"
           R"(["id", "name", "tokens"], "column_sizes": [8, null, null], "compression": null, )"
           R"("format": "mds", "hashes": ["sha1", "xxh64"], "size_limit": 67108864, "version": 2})";
    out += le(2u) + le(14u) + le(int64_t{7}) + "ab\x04\x03" + le(1) + le(2) + le(300);
    out += le(0u) + le(1043u) + le(int64_t{8}) + '\x05' + le(uint16_t{260});
    for (int id = 0; id < 260; ++id) out += le(id);
    return out;
  }
  TokenCounts convert(const Log& log = {}) {
    put_file(folder / "index.json", index);
    put_file(folder / "shard.00000.mds", shard);
    Fs fs;
    return convert_mds(config, fs, log);
  }
  std::string refusal(Code code = Code::kBadShard) {
    return refusal_code(code, [&] { convert(); });
  }
  void replace(std::string& text, const std::string& from, const std::string& to) {
    ASSERT_TRUE(has(text, from)) << from;
    text.replace(text.find(from), from.size(), to);
  }
};

TEST_F(Mds, AFolderOfTheStreamingPackageIsConverted) {
  ASSERT_EQ(hex(xxh64(std::as_bytes(std::span(shard)))), "f0fc421819168b10");
  config.vocab = 301;
  const TokenCounts counts = convert();
  EXPECT_EQ(counts.documents, 2);
  Ids expected{1, 2, 300};
  for (int id = 0; id < 260; ++id) expected.push_back(id);
  EXPECT_EQ(all_tokens(config.output), expected);
  EXPECT_EQ(TokenFile(config.output).index().type(), TokenType::kU16);
}

TEST_F(Mds, F67_EveryFlippedBitOfAShardIsFound) {
  for (size_t byte = 0; byte < shard.size(); byte += 7) {
    shard = golden();
    shard[byte] = static_cast<char>(shard[byte] ^ 4);
    EXPECT_PRED2(has, refusal(), "shard.00000.mds: E3107 xxh64 is");
  }
}

TEST_F(Mds, F67_AShardOfAnotherSizeIsRefused) {
  shard.pop_back();
  EXPECT_PRED2(has, refusal(), "shard.00000.mds: E3107 has 1339 bytes; index.json says 1340");
}

// Without hashes the offsets and sizes are all there is.
TEST_F(Mds, F67_WithoutHashesEveryDamageStaysInBounds) {
  replace(index, R"("xxh64": "f0fc421819168b10")", R"("md5": "x")");
  config.replace = true;
  for (size_t byte = 0; byte < 310; byte += 3) {
    shard = golden();
    shard[byte] = static_cast<char>(shard[byte] ^ 0x81);
    try {
      convert();
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_class(), ExitClass::kData) << byte << ' ' << error.what();
    }
  }
  shard = golden();
  shard.replace(4, 4, le(5u));
  EXPECT_PRED2(has, refusal(), "sample 0: E3107 is at bytes 5 to 281");
  shard = golden();
  shard.replace(249 + 4, 4, le(400u));
  EXPECT_PRED2(has, refusal(), "column 2 needs 400 bytes");
}

TEST_F(Mds, HashesThatWeDoNotKnowAreAWarning) {
  replace(index, R"(, "xxh64": "f0fc421819168b10")", "");
  const auto sink = std::make_shared<Lines>();
  convert(Log({sink}));
  EXPECT_PRED2(has, sink->text, "sha1 is not checked");
}

TEST_F(Mds, PlainBytesAreWhatTheConfigSays) {
  replace(index, R"(["int", "str", "ndarray:int32"])", R"(["bytes", "str", "bytes"])");
  EXPECT_PRED2(has, refusal(), "14 bytes are no whole number of i64");
  config.bytes_are = "i16";
  EXPECT_PRED2(has, refusal(Code::kBadValue), "is none of i64, i32, u16");
  config.column = "id";
  config.bytes_are = "i64";
  convert();
  EXPECT_EQ(all_tokens(config.output), (Ids{7, 8}));
}

TEST_F(Mds, WhatIsNotThereIsNamed) {
  config.column = "ids";
  EXPECT_PRED2(has, refusal(), "has no column ids; it has id name tokens");
  config.column = "name";
  EXPECT_PRED2(has, refusal(), "encoding str holds no tokens");
  config.column = "tokens";
  config.vocab = 300;
  EXPECT_PRED2(has, refusal(Code::kBadToken), "sample 0: E3102 has the token id 300");
  replace(index, "shard.00000.mds", "../shard.00000.mds");
  EXPECT_PRED2(has, refusal(), "leaves the folder");
}

TEST_F(Mds, F67_CompressedShardsMustBeUnpacked) {
  replace(index, R"("zip_data": null)", R"("zip_data": {"basename": "shard.00000.mds.zstd"})");
  replace(index, "shard.00000.mds\"", "shard.00001.mds\"");
  EXPECT_PRED2(has, refusal(), "shard.00000.mds.zstd: E3107 is compressed");
}

}  // namespace
}  // namespace troupe
