#include "troupe/ops/attention/attention_slices.h"

#include <gtest/gtest.h>

#include <numeric>

#include "troupe/core/check.h"

namespace troupe {
namespace {

TEST(AttentionSlices, SequencesOfOneLengthAreOneDenseGroup) {
  const auto groups = groups_of({70, 70, 70});
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_TRUE(groups[0].dense);
  EXPECT_EQ(groups[0].length, 70);
  EXPECT_EQ(groups[0].starts, (std::vector<int64_t>{0, 70, 140}));
  EXPECT_EQ(places(groups[0]), 3);
}

TEST(AttentionSlices, DocumentsAreGroupedByPowersOfTwoEachOnce) {
  const std::vector<int64_t> lengths = {1, 130, 0, 3, 128, 4096, 129, 65};
  int64_t tokens = 0, documents = 0;
  std::vector<int64_t> seen;
  for (const SequenceGroup& group : groups_of(lengths)) {
    EXPECT_FALSE(group.dense);
    seen.push_back(group.length);
    EXPECT_GE(places(group), static_cast<int64_t>(group.starts.size()));
    for (size_t i = 0; i < group.starts.size(); ++i) {
      EXPECT_LE(group.lengths[i], group.length);
      EXPECT_TRUE(group.length == 64 || group.lengths[i] > group.length / 2);
      tokens += group.lengths[i];
      ++documents;
    }
  }
  EXPECT_EQ(seen, (std::vector<int64_t>{64, 128, 256, 4096}));
  EXPECT_EQ(tokens, std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  EXPECT_EQ(documents, 7);
}

TEST(AttentionSlices, OneTokenEachIsNoDenseGroup) {  // which cuDNN has no plan for
  ASSERT_EQ(groups_of({1, 1}).size(), 1u);
  EXPECT_FALSE(groups_of({1, 1})[0].dense);
  EXPECT_TRUE(groups_of({0, 0}).empty());
  EXPECT_TRUE(groups_of({}).empty());
}

TEST(AttentionSlices, EightHeadsOf4096TokensAreHalfTheLimit) {
  const AttentionSlices s = attention_slices(4, 4096, 16, 16);
  EXPECT_EQ(s.sequences, 1);
  EXPECT_EQ(s.heads, 8);
  EXPECT_EQ(s.parts, 1);
  EXPECT_EQ(s.in_flight, 2);
}

TEST(AttentionSlices, WhatFitsIsOneSlice) {
  const AttentionSlices s = attention_slices(4, 512, 16, 4);
  EXPECT_EQ(s.sequences, 4);
  EXPECT_EQ(s.heads, 16);
  EXPECT_EQ(s.in_flight, 1);
}

TEST(AttentionSlices, StayUnderTheLimitAndHoldWholeKeyHeadsOrEvenPartsOfOne) {
  for (const int64_t length : {1, 63, 1021, 2048, 4096, 8192, 11585, 16384}) {
    for (const auto& [heads, kv_heads] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {16, 16}, {32, 4}, {12, 2}, {7, 1}, {64, 8}}) {
      for (const int64_t sequences : {1, 3, 8}) {
        const AttentionSlices s = attention_slices(sequences, length, heads, kv_heads);
        const int64_t group = heads / kv_heads;
        EXPECT_LE(s.in_flight * s.sequences * s.heads * attention_head_bytes(length),
                  kAttentionBytes);
        EXPECT_EQ(heads % s.heads, 0);
        EXPECT_TRUE(s.parts == 1 ? s.heads % group == 0 : s.heads * s.parts == group);
        EXPECT_GE(s.sequences, 1);
      }
    }
  }
}

TEST(AttentionSlices, RefusesAHeadOverTheLimit) {
  EXPECT_THROW((void)attention_slices(1, 32768, 16, 16), Error);
}

}  // namespace
}  // namespace troupe
