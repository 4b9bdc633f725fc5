#include "troupe/data/tokenizer/sentencepiece.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "troupe/core/check.h"
#include "troupe/data/tokenizer/sentencepiece_model.h"
#include "troupe/testing/cpu_seconds.h"

namespace troupe {
namespace {

using Ids = std::vector<TokenId>;
using Type = SentencePieceModel::Type;

// Protobuf, as far as a model needs it.
std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}
std::string field(int number, int64_t value) {
  return varint(static_cast<uint64_t>(number) << 3) + varint(static_cast<uint64_t>(value));
}
std::string field(int number, const std::string& bytes) {
  return varint(static_cast<uint64_t>(number) << 3 | 2) + varint(bytes.size()) + bytes;
}
std::string field(int number, float value) {
  std::string out = varint(static_cast<uint64_t>(number) << 3 | 5);
  out.append(reinterpret_cast<const char*>(&value), 4);
  return out;
}
std::string piece(const std::string& text, float score, Type type = Type::kNormal) {
  return field(1, field(1, text) + field(2, score) + field(3, static_cast<int64_t>(type)));
}

constexpr int kBpe = 2;
std::string trainer(int64_t type = kBpe, int64_t fallback = 0) {
  return field(2, field(3, type) + field(35, fallback));
}

// <unk> <s> </s>, the mark, a, b, and two merges.
std::string pieces() {
  return piece("<unk>", 0, Type::kUnknown) + piece("<s>", 0, Type::kControl) +
         piece("</s>", 0, Type::kControl) + piece("\xE2\x96\x81", -3) + piece("a", -4) +
         piece("b", -5) +
         piece(
             "\xE2\x96\x81"
             "a",
             -1) +
         piece("ab", -2);
}
std::string model() {
  return pieces() + trainer() + field(3, field(1, std::string("identity")));
}
std::string byte_pieces() {
  std::string out;
  char name[8];
  for (int byte = 0; byte < 256; ++byte) {
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    out += piece(name, 0, Type::kByte);
  }
  return out;
}

void expect_refused(const std::string& bytes, const std::string& part) {
  try {
    parse_sentencepiece(bytes, "t.model");
    ADD_FAILURE() << "accepted; wanted: " << part;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kBadTokenizer) << e.what();
    EXPECT_EQ(std::string(e.what()).find("t.model"), 0U) << e.what();
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

// Found by fuzzing: the library has no ids for a text with a character that is a control piece.
TEST(SentencePiece, F74_ATextWithoutIdsIsAnErrorOfTheDataAndNotOurs) {
  const auto t = parse_sentencepiece(pieces() + piece("\xEF\xBF\xBD", 0, Type::kControl) +
                                         trainer() + field(3, field(1, std::string("identity"))),
                                     "t.model");
  EXPECT_EQ(t->encode("ab a"), (Ids{6, 5, 6}));
  try {
    t->encode("a\xFF");  // which the library reads as U+FFFD
    ADD_FAILURE() << "encoded";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_class(), ExitClass::kData) << e.what();
    EXPECT_NE(std::string(e.what()).find("SentencePiece cannot encode"), std::string::npos);
  }
}

TEST(SentencePiece, MergesTheHighestScoreAndDropsTheFirstSpace) {
  const auto t = parse_sentencepiece(model(), "t.model");
  EXPECT_EQ(t->encode("ab a"), (Ids{6, 5, 6}));  // the mark and a (-1) before ab (-2)
  EXPECT_EQ(t->decode(Ids{6, 5, 6}), "ab a");
  EXPECT_EQ(t->encode("bab"), (Ids{3, 5, 7}));
  EXPECT_EQ(t->special().bos, 1);
  EXPECT_EQ(t->special().eos, 2);
  EXPECT_EQ(t->special().pad, -1);
  EXPECT_EQ(t->special().unk, 0);
  EXPECT_EQ(t->vocab_size(), 8);
  EXPECT_EQ(t->added_tokens().size(), 2U);
}

TEST(SentencePiece, BytesStandForWhatIsNotKnown) {
  const auto t = parse_sentencepiece(pieces() + byte_pieces() + trainer(kBpe, 1), "t.model");
  EXPECT_EQ(t->encode("\xC3\xA9"), (Ids{3, 8 + 0xC3, 8 + 0xA9}));
  EXPECT_EQ(t->decode(Ids{4, 8 + 0xC3, 8 + 0xA9}), "a\xC3\xA9");
  EXPECT_EQ(t->decode(Ids{8 + 0xC3, 4}),
            "\xEF\xBF\xBD"
            "a");
  TextStream stream(*t);
  EXPECT_EQ(stream.add(8 + 0xC3), "");
  EXPECT_EQ(stream.add(8 + 0xA9), "\xC3\xA9");
}

// A model as Llama's: spaces are kept. With a symbol of the user's, which no text holds, the
// library encodes; without it, we do.
std::string random_model(std::mt19937& rng, bool by_library, bool fallback) {
  const std::vector<std::string> letters = {"a", "b", "c", "\xC3\xA9", "\xE2\x96\x81"};
  const auto below = [&](size_t n) { return static_cast<size_t>(rng() % n); };
  std::string out = piece("<unk>", 0, Type::kUnknown);
  std::vector<std::string> texts = letters;
  while (texts.size() < 40) {
    const std::string text = texts[below(texts.size())] + texts[below(texts.size())];
    if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
  }
  // Few scores for many pieces: of equals the leftmost is merged first.
  for (const std::string& text : texts) out += piece(text, -static_cast<float>(below(6)));
  out += piece("\x01", 0, by_library ? Type::kUserDefined : Type::kControl);
  if (fallback) out += byte_pieces();
  return out + trainer(kBpe, fallback ? 1 : 0) +
         field(3, field(1, std::string("identity")) + field(3, static_cast<int64_t>(below(2))) +
                      field(4, int64_t{0}));
}

TEST(SentencePiece, OurEncoderSaysWhatTheLibrarySays) {
  const std::vector<std::string> parts = {"a", "b", "c", "\xC3\xA9", " ", "x", "\xE4\xB8\xAD"};
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 ours_rng(seed), library_rng(seed), rng(seed + 1000);
    const auto ours = parse_sentencepiece(random_model(ours_rng, false, seed % 2 == 0), "ours");
    const auto library =
        parse_sentencepiece(random_model(library_rng, true, seed % 2 == 0), "library");
    for (int i = 0; i < 20; ++i) {
      std::string text;
      for (size_t n = rng() % (i == 0 ? 500 : 40); n > 0; --n) text += parts[rng() % parts.size()];
      ASSERT_EQ(ours->encode(text), library->encode(text)) << "seed " << seed << ": " << text;
    }
    EXPECT_EQ(ours->encode(""), library->encode(""));
    EXPECT_EQ(ours->encode("a\xFF\xE4\xB8z"), library->encode("a\xFF\xE4\xB8z"));
  }
}

TEST(SentencePiece, F74_RefusesACutFileAtEveryByte) {
  const std::string whole = model();
  for (size_t n = 0; n < whole.size(); ++n) {
    try {
      parse_sentencepiece(whole.substr(0, n), "t.model");
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kBadTokenizer) << e.what();
    }
  }
  expect_refused(whole.substr(0, whole.size() - 3), "before the field does");
}

TEST(SentencePiece, F74_RefusesNumbersThatRunOver) {
  expect_refused(model() + std::string("\x18") + std::string(10, '\xFF'), "64 bits");
  expect_refused(model() + "\x1A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", "before the field does");
  expect_refused(model() + "\x1B", "wire type 3");
  expect_refused(model() + std::string(1, '\0') + "x", "number 0");
  expect_refused(field(1, int64_t{5}), "bytes are expected");
}

TEST(SentencePiece, F74_RefusesPiecesThatContradict) {
  const std::string normal = piece("a", 0);
  expect_refused(normal + trainer(), "0 pieces of type UNKNOWN");
  expect_refused(pieces() + piece("<u2>", 0, Type::kUnknown) + trainer(),
                 "2 pieces of type UNKNOWN");
  expect_refused(pieces() + piece("", 0) + trainer(), "is empty");
  expect_refused(pieces() + normal + trainer(), "as is piece 4");
  expect_refused(pieces() + piece(std::string("x\0y", 3), 0) + trainer(), "NUL");
  expect_refused(pieces() + piece("\xFF", 0) + trainer(), "UTF-8");
  expect_refused(pieces() + piece("z", NAN) + trainer(), "score");
  expect_refused(pieces() + piece("<0x00>", 0, Type::kByte) + trainer(), "byte_fallback is off");
  expect_refused(pieces() + piece("<0xZZ>", 0, Type::kByte) + trainer(kBpe, 1), "<0xZZ>");
  expect_refused(pieces() + piece("<0x00>", 0, Type::kByte) + trainer(kBpe, 1), "1 of the 256");
  expect_refused(pieces() + field(1, field(1, std::string("z")) + field(3, int64_t{9})), "type 9");
  expect_refused(pieces() + trainer(7), "model_type is 7");
  expect_refused("", "no pieces");
}

// 256 units, all of them 0 but those that are given, then replacements.
std::string charsmap(const std::vector<std::pair<int, uint32_t>>& units, const std::string& text) {
  std::vector<uint32_t> all(256);
  for (const auto& [at, unit] : units) all[static_cast<size_t>(at)] = unit;
  const uint32_t size = 1024;
  std::string out(reinterpret_cast<const char*>(&size), 4);
  out.append(reinterpret_cast<const char*>(all.data()), size);
  return out + text;
}
std::string with_map(const std::string& map) {
  return pieces() + trainer() + field(3, field(2, map));
}

TEST(SentencePiece, F74_RefusesACharsmapThatLeadsOutside) {
  const std::string text("x\0", 2);
  EXPECT_NO_THROW(parse_sentencepiece(with_map(charsmap({}, text)), "t.model"));
  expect_refused(with_map(charsmap({{0, 300U << 10}}, text)),
                 "leads outside");  // offset 300 of 256
  // A child at 'a' whose value is behind the replacements.
  expect_refused(with_map(charsmap({{'a', 'a' | 1U << 8}}, text)), "leads outside");
  expect_refused(with_map(charsmap({}, "x")), "NUL");
  expect_refused(with_map(charsmap({}, "")), "NUL");
  expect_refused(with_map("\xFF\xFF\xFF\x7F" + std::string(2000, '\0')), "table of");
  expect_refused(with_map("ab"), "table of");
}

TEST(SentencePiece, F74_TenThousandDamagedFilesAreReadOrRefused) {
  const std::string whole = pieces() + byte_pieces() + trainer(kBpe, 1) +
                            field(3, field(2, charsmap({}, std::string("x\0", 2))));
  std::mt19937 rng(11);
  int accepted = 0;
  for (int i = 0; i < 10000; ++i) {
    std::string bytes = whole;
    // Some damage near the beginning, where a piece is, some near the end, where the rest is.
    const auto damages = rng() % 4;
    for (unsigned n = 0; n < damages; ++n) {
      const size_t at = rng() % 2 == 0 ? rng() % 80 : bytes.size() - 1 - rng() % 1100;
      bytes[at] = static_cast<char>(rng());
    }
    if (rng() % 8 == 0) bytes.resize(rng() % bytes.size());
    try {
      const auto t = parse_sentencepiece(bytes, "t.model");
      t->decode(t->encode("ab \xE4\xB8\xAD b"));
      ++accepted;
    } catch (const Error& e) {
      ASSERT_EQ(e.code(), Code::kBadTokenizer) << e.what();
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(SentencePiece, F158_ALongPieceIsRefused) {
  const double begin = cpu_seconds();
  const std::string huge = pieces() + piece(std::string(size_t{50} << 20, 'a'), -9) + trainer();
  expect_refused(huge, "has 52428800 bytes; 1024 at most");
  expect_refused(with_map(charsmap({}, std::string(300, 'x') + std::string(1, '\0'))),
                 "replaces by 300 bytes");  // a character each could become them
  EXPECT_LT(cpu_seconds() - begin, 20);     // each way to cut it in two was looked up: a day
}

}  // namespace
}  // namespace troupe
