#include "troupe/data/text/masked_text.h"

#include <gtest/gtest.h>

#include "troupe/testing/files.h"

namespace troupe {
namespace {

using Pieces = std::vector<std::string>;

// Ids are the letters; `pieces` is how the whole is spelled.
std::string weights(const std::string& text, const std::vector<ByteSpan>& learned,
                    const Pieces& pieces) {
  const Encode encode = [](std::string_view part, std::vector<int32_t>& ids) {
    for (const char c : part) ids.push_back(c);
  };
  EncodedDocuments out;
  add_masked(
      {.text = text, .learned = learned, .fault = ""}, encode,
      [&](std::span<const int32_t>) { return pieces; }, out);
  std::string said;
  for (const uint8_t weight : out.weights) said += weight ? '1' : '0';
  return said;
}

TEST(MaskedText, AnIdIsLearnedThatHoldsALearnedByte) {
  EXPECT_EQ(weights("abcd", {{1, 3}}, {"a", "b", "c", "d"}), "0110");
  EXPECT_EQ(weights("abcd", {{1, 3}}, {"ab", "", "cd", ""}), "1110");
  EXPECT_EQ(weights("abcd", {{2, 2}}, {"a", "b", "c", "d"}), "0000");
  EXPECT_EQ(weights("abcd", {{0, 1}, {3, 4}}, {"a", "b", "c", "d"}), "1001");
}

TEST(MaskedText, HalvesOfACharacterShareItsPlace) {
  EXPECT_EQ(weights("a\xC3\xA9 b", {{1, 3}}, {"a", "", "\xC3\xA9", " ", "b"}), "01100");
}

TEST(MaskedText, SpacesOfADecoderTakeNoPlace) {
  EXPECT_EQ(weights("abcd", {{1, 3}}, {" a", "b", " c", "d"}), "0110");
  EXPECT_EQ(weights("a \nb", {{3, 4}}, {"a", "b", "", ""}), "0100");
}

TEST(MaskedText, OfAnotherTextPrefixesSayWhereItIs) {
  EXPECT_EQ(weights("abcd", {{1, 3}}, {"A", "B", "C", "D"}), "0110");
  EXPECT_EQ(weights("abcd", {{1, 3}}, {"a", "b"}), "0110");
}

TEST(MaskedText, WhatNoIdHoldsAloneIsRefused) {
  const Encode whole = [](std::string_view part, std::vector<int32_t>& ids) {
    ids.push_back(static_cast<int32_t>(part.size()));
  };
  const Spell other = [](std::span<const int32_t>) { return Pieces{"X"}; };
  EncodedDocuments out;
  const RenderedChat chat{.text = "abcd", .learned = {{1, 3}}, .fault = ""};
  std::string said;
  try {
    add_masked(chat, whole, other, out);
  } catch (const std::string& what) {
    said = what;
  }
  EXPECT_PRED2(testing::has, said, "the tokenizer changes the text");
  EXPECT_TRUE(out.ids.empty());
}

}  // namespace
}  // namespace troupe
