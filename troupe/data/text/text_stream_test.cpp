#include "troupe/data/text/text_stream.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include <cstdlib>
#include <random>

#include "troupe/testing/files.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

using testing::has;
using testing::put_file;
using testing::refusal_code;
using testing::TemporaryFolder;

std::string gzip(const std::string& text) {
  z_stream z = {};
  EXPECT_EQ(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string out(deflateBound(&z, text.size()), '\0');
  z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  z.avail_in = static_cast<uInt>(text.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&z, Z_FINISH), Z_STREAM_END);
  out.resize(z.total_out);
  deflateEnd(&z);
  return out;
}

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* const z = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(z, ZSTD_c_checksumFlag, 1);  // as the program zstd does
  out.resize(ZSTD_compress2(z, out.data(), out.size(), text.data(), text.size()));
  ZSTD_freeCCtx(z);
  return out;
}

std::string all_of(TextStream& stream, size_t block_size) {
  std::string out, block(block_size, '\0');
  while (const size_t count = stream.read(block)) out.append(block, 0, count);
  return out;
}

std::string random_text(size_t size) {
  std::mt19937 random(1);
  std::string out(size, ' ');
  for (char& c : out) c = "abc def\nghi"[random() % 11];
  return out;
}

struct Streams : ::testing::Test {
  TemporaryFolder folder;

  std::string put(const std::string& name, const std::string& bytes) const {
    put_file(folder / name, bytes);
    return folder / name;
  }
  static std::unique_ptr<TextStream> plain(const std::string& path) {
    return open_text(path, {.packing = text_shape(path).packing});
  }
  std::string rows(const std::string& name, const std::string& bytes) const {
    const std::string path = put(name, bytes);
    return all_of(*open_text(path, text_shape(path), "text"), 7);
  }
  std::string refusal(const std::string& name, const std::string& bytes, bool rows = true) const {
    const std::string path = put(name, bytes);
    return refusal_code(Code::kUnreadableData, [&] {
      all_of(*(rows ? open_text(path, text_shape(path), "text") : plain(path)), 1000);
    });
  }
};

TEST_F(Streams, UnpackedTextIsWhatWasPacked) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1000}, size_t{3} << 20}) {
    const std::string text = random_text(size);
    for (const std::string& path : {put("x", text), put("x.gz", gzip(text)),
                                    put("x.zst", zstd(text)), put("noname", gzip(text))}) {
      for (const size_t block : {size_t{100}, size_t{1} << 20}) {
        EXPECT_TRUE(all_of(*plain(path), block) == text) << path << size;
      }
      const auto later = plain(path);
      later->skip(500);
      EXPECT_TRUE(all_of(*later, 1000) == text.substr(std::min<size_t>(500, size))) << path;
    }
  }
}

TEST_F(Streams, MembersAndFramesFollowEachOther) {
  const std::string a = random_text(100000), b = random_text(70);
  EXPECT_TRUE(all_of(*plain(put("x.gz", gzip(a) + gzip(b))), 999) == a + b);
  const std::string padded = gzip(a) + gzip(b) + std::string(100, '\0');
  EXPECT_TRUE(all_of(*plain(put("x.gz", padded)), 999) == a + b);
  EXPECT_TRUE(all_of(*plain(put("x.zst", zstd(a) + zstd(b))), 999) == a + b);
}

TEST_F(Streams, WhatIsCutOffOrDamagedIsSaid) {
  const std::string text = random_text(1 << 20);
  for (const auto& [name, whole] :
       {std::pair{std::string("x.gz"), gzip(text)}, std::pair{std::string("x.zst"), zstd(text)}}) {
    for (const size_t part : {whole.size() - 1, whole.size() / 2, size_t{20}}) {
      EXPECT_PRED2(has, refusal(name, whole.substr(0, part), false), "is cut off") << part;
    }
    std::string damaged = whole;
    for (size_t i = whole.size() / 2; i < whole.size() / 2 + 64; ++i) damaged[i] = '\xA5';
    EXPECT_PRED2(has, refusal(name, damaged, false), "is damaged");
  }
  EXPECT_PRED2(has, refusal("x.gz", gzip(text) + "behind", false), "is damaged");
}

TEST_F(Streams, RowsOfCsvAreLinesOfJson) {
  EXPECT_EQ(rows("x.csv", "name,text\na,good\nb,\"it says \"\"well\"\"\"\n"),
            "{\"text\": \"good\"}\n{\"text\": \"it says \\\"well\\\"\"}\n");
  EXPECT_EQ(rows("x.csv", "\xEF\xBB\xBFtext\r\n\"two\nlines\"\r\n\r\nlast"),
            "{\"text\": \"two\\u000alines\"}\n{\"text\": \"last\"}\n");
  EXPECT_EQ(rows("x.tsv", "id\ttext\n1\ta, b\n"), "{\"text\": \"a, b\"}\n");
  EXPECT_EQ(rows("x.csv.gz", gzip("text\na\n")), "{\"text\": \"a\"}\n");
  EXPECT_EQ(rows("x.csv", "text\n"), "");
  EXPECT_EQ(all_of(*open_text(put("x.csv", "a,b\n1,2\n"), {.rows = TextShape::Rows::kCsv}), 9),
            "{\"a\": \"1\", \"b\": \"2\"}\n");
  EXPECT_EQ(rows("x.csv", "id,text\n1\n1,a,b\n"),
            "the row has 1 fields for 2 columns\nthe row has 3 fields for 2 columns\n");
}

TEST_F(Streams, FaultsOfCsvAreNamed) {
  EXPECT_PRED2(has, refusal("x.csv", "id,body\n1,a\n"), "its columns are id, body");
  EXPECT_PRED2(has, refusal("x.csv", "text\na\n\"b\nc\n"),
               "x.csv: row 3: E3001 ends within quotes");
  EXPECT_PRED2(has, refusal("x.csv", ""), "has no column text");
}

TEST_F(Streams, ItemsOfAnArrayAreLines) {
  EXPECT_EQ(rows("x.json", " [\n{\"text\": \"a\\\"]\",\n \"n\": [1, {}]}, {\"text\": \"b\"}\n]\n"),
            "{\"text\": \"a\\\"]\",  \"n\": [1, {}]}\n{\"text\": \"b\"} \n");
  EXPECT_EQ(rows("x.json", "[]"), "");
  EXPECT_EQ(rows("x.jsonl.zst", zstd("[{\"text\": 1}]")), "{\"text\": 1}\n");
  EXPECT_EQ(rows("x.json", "{\"text\": \"a\"}\n[1]\n"), "{\"text\": \"a\"}\n[1]\n");
  EXPECT_PRED2(has, refusal("x.json", "[{\"text\": \"a\"}, "), "row 2: E3001 is missing");
  EXPECT_PRED2(has, refusal("x.json", "[{\"text\": \"a"), "row 1: E3001 is cut off");
  EXPECT_PRED2(has, refusal("x.json", "[1] 2"), "is followed by more");
}

TEST_F(Streams, ATableIsReadByThePythonThatIsNamed) {
  put("python", "#!/bin/sh\necho \"$5\"\n");
  ASSERT_EQ(::chmod((folder / "python").c_str(), 0700), 0);
  ::setenv("TROUPE_PYTHON", (folder / "python").c_str(), 1);
  EXPECT_PRED2(has, rows("x.parquet", "PAR1"), "x.parquet");
  ::setenv("TROUPE_PYTHON", "no-such-python", 1);
  EXPECT_PRED2(has, refusal("x.parquet", "PAR1"), "no-such-python does not start");
  put("python", "#!/bin/sh\necho 'row 7: is damaged' >&2\nexit 1\n");
  ASSERT_EQ(::chmod((folder / "python").c_str(), 0700), 0);
  ::setenv("TROUPE_PYTHON", (folder / "python").c_str(), 1);
  EXPECT_PRED2(has, refusal("x.parquet", "PAR1"), "row 7: is damaged");
  ::unsetenv("TROUPE_PYTHON");
}

}  // namespace
}  // namespace troupe
