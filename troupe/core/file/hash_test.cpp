#include "troupe/core/file/hash.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace troupe {
namespace {

std::string random_text(size_t size) {
  std::mt19937 random(static_cast<unsigned>(size));
  std::string out(size, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

std::span<const std::byte> bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(Hash, GivesTheKnownAnswersOfXxh3) {
  EXPECT_EQ(hex(hash64("")), "2d06800538d394c2");
  EXPECT_EQ(hex(hash128({})), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(hex(hash64("abc")), "78af5f94892f3950");
}

TEST(Hash, PiecesHashLikeTheWhole) {
  std::mt19937 random(1);
  for (const size_t size :
       {0, 1, 15, 16, 17, 239, 240, 241, 255, 256, 257, 1023, 1025, 5000, 100003}) {
    const std::string text = random_text(size);
    Hasher hasher;
    for (size_t at = 0; at < size;) {
      const size_t piece = std::min<size_t>(size - at, random() % 700);
      hasher.update(std::string_view(text).substr(at, piece));
      at += piece;
    }
    EXPECT_EQ(hasher.digest64(), hash64(text)) << size;
    EXPECT_EQ(hasher.digest128(), hash128(bytes(text))) << size;
  }
}

TEST(Hash, MayGoOnAfterADigestAndAfterAMove) {
  Hasher a;
  a.update("hello ");
  EXPECT_EQ(a.digest64(), hash64("hello "));
  Hasher b(std::move(a));
  b.update("world");
  EXPECT_EQ(b.digest64(), hash64("hello world"));
}

TEST(Hash, SeesEveryFlippedBit) {
  std::string text = random_text(300);
  std::set<uint64_t> seen = {hash64(text)};
  for (size_t bit = 0; bit < 8 * text.size(); ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
    seen.insert(hash64(text));
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << bit % 8));
  }
  EXPECT_EQ(seen.size(), 8 * text.size() + 1);
}

TEST(Hash, Xxh64IsTheOlderHash) {
  EXPECT_EQ(hex(xxh64(bytes(""))), "ef46db3751d8e999");
  EXPECT_EQ(hex(xxh64(bytes("abc"))), "44bc2cf5ad770999");
}

TEST(Hash, HexReadsBack) {
  const Hash128 hash = hash128(bytes("x"));
  Hash128 back;
  ASSERT_TRUE(from_hex(hex(hash), back));
  EXPECT_EQ(back, hash);
  uint64_t small = 0;
  ASSERT_TRUE(from_hex("00000000000000ff", small));
  EXPECT_EQ(small, 255u);
  for (const char* text : {"", "ff", "00000000000000FF", "-0000000000000ff", "00000000000000fff"}) {
    EXPECT_FALSE(from_hex(text, small)) << text;
  }
}

}  // namespace
}  // namespace troupe
