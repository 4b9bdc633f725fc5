#include "troupe/ops/attention/attention_slices.h"

#include <gtest/gtest.h>

#include <numeric>

#include "troupe/core/check.h"

namespace troupe {
namespace {

std::vector<SequenceGroup> of_lengths(const std::vector<int64_t>& lengths) {
  return groups_of(lengths);
}

TEST(AttentionSlices, SequencesOfOneLengthAreOneDenseGroup) {
  const auto groups = of_lengths({70, 70, 70});
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_TRUE(groups[0].dense);
  EXPECT_EQ(groups[0].length, 70);
  EXPECT_EQ(groups[0].segments,
            (std::vector<AttentionSegment>{{0, 70, 0, 0}, {70, 70, 70, 0}, {140, 70, 140, 0}}));
  EXPECT_EQ(places(groups[0]), 3);
}

TEST(AttentionSlices, DocumentsAreGroupedByPowersOfTwoEachOnce) {
  const std::vector<int64_t> lengths = {1, 130, 0, 3, 128, 4096, 129, 65};
  int64_t tokens = 0, documents = 0;
  std::vector<int64_t> seen;
  for (const SequenceGroup& group : groups_of(lengths)) {
    EXPECT_FALSE(group.dense);
    EXPECT_EQ(group.mask, AttentionMask::kCausal);
    EXPECT_EQ(group.keys, group.length);
    seen.push_back(group.length);
    EXPECT_GE(places(group), std::ssize(group.segments));
    for (const AttentionSegment& s : group.segments) {
      EXPECT_LE(s.rows, group.length);
      EXPECT_TRUE(group.length == 64 || s.rows > group.length / 2);
      tokens += s.rows;
      ++documents;
    }
  }
  EXPECT_EQ(seen, (std::vector<int64_t>{64, 128, 256, 4096}));
  EXPECT_EQ(tokens, std::accumulate(lengths.begin(), lengths.end(), int64_t{0}));
  EXPECT_EQ(documents, 7);
}

TEST(AttentionSlices, OneTokenEachIsNoDenseGroup) {  // which cuDNN has no plan for
  ASSERT_EQ(of_lengths({1, 1}).size(), 1u);
  EXPECT_FALSE(of_lengths({1, 1})[0].dense);
  EXPECT_TRUE(of_lengths({0, 0}).empty());
  EXPECT_TRUE(of_lengths({}).empty());
}

// Two rows of 4 chunks of 100 tokens, of which rank 1 of 2 has chunks 1 and 2.
TEST(AttentionSlices, SegmentsThatShareKeysAreInLayers) {
  const std::vector<AttentionSegment> segments = {
      {0, 100, 0, 100}, {100, 100, 0, 200}, {200, 100, 300, 100}, {300, 100, 300, 200}};
  const auto groups = groups_of(segments);
  ASSERT_EQ(groups.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(groups[i].mask, AttentionMask::kCausalLast);
    EXPECT_EQ(groups[i].length, 128);
    EXPECT_EQ(groups[i].keys, i == 0 ? 256 : 512);
    EXPECT_EQ(groups[i].segments, (std::vector<AttentionSegment>{segments[i], segments[2 + i]}));
    EXPECT_EQ(groups[i].layers, std::vector<int64_t>(2, static_cast<int64_t>(i)));
  }
  EXPECT_EQ(layers_of(groups), 2);
}

TEST(AttentionSlices, LayersAreOfAllGroups) {  // they add to the same keys
  const auto groups = groups_of(std::vector<AttentionSegment>{
      {0, 500, 0, 0}, {500, 64, 400, 300}, {564, 500, 500, 10}, {1064, 3, 1100, 40, 40}});
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(layers_of(groups), 2);  // keys 0 to 500, 400 to 764, 500 to 1010, 1100 to 1140
  EXPECT_EQ(groups[0].mask, AttentionMask::kNone);
  EXPECT_EQ(groups[0].layers, (std::vector<int64_t>{0}));
  EXPECT_EQ(groups[1].layers, (std::vector<int64_t>{1}));
  EXPECT_EQ(groups[2].layers, (std::vector<int64_t>{0, 0}));
}

TEST(AttentionSlices, QueriesAreCutWhereAHeadIsMoreThanTheLimit) {
  const auto groups = of_lengths({32768});
  ASSERT_EQ(groups.size(), 3u);
  for (const SequenceGroup& group : groups) EXPECT_EQ(group.length, 8192);
  EXPECT_EQ(groups[0].mask, AttentionMask::kCausal);
  EXPECT_EQ(groups[1].segments, (std::vector<AttentionSegment>{{8192, 8192, 0, 8192}}));
  EXPECT_EQ(groups[2].keys, 32768);
  EXPECT_EQ(groups[2].mask, AttentionMask::kCausalLast);
  EXPECT_EQ(groups[2].segments,
            (std::vector<AttentionSegment>{{16384, 8192, 0, 16384}, {24576, 8192, 0, 24576}}));
  EXPECT_EQ(layers_of(groups), 4);
  EXPECT_TRUE(of_lengths({16384})[0].dense);
  EXPECT_EQ(layers_of(of_lengths({16385, 3})), 4);  // in powers of two 32768
  // A part whose keys all queries see.
  const auto all = groups_of(std::vector<AttentionSegment>{{0, 16384, 0, 40000, 32768}});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].mask, AttentionMask::kNone);
  EXPECT_EQ(all[0].segments[1], (AttentionSegment{8192, 8192, 0, 48192, 32768}));
}

TEST(AttentionSlices, EightHeadsOf4096TokensAreHalfTheLimit) {
  const AttentionSlices s = attention_slices(4, attention_head_bytes(4096, 4096), 16, 16);
  EXPECT_EQ(s.sequences, 1);
  EXPECT_EQ(s.heads, 8);
  EXPECT_EQ(s.parts, 1);
  EXPECT_EQ(s.in_flight, 2);
}

TEST(AttentionSlices, WhatFitsIsOneSlice) {
  const AttentionSlices s = attention_slices(4, attention_head_bytes(512, 512), 16, 4);
  EXPECT_EQ(s.sequences, 4);
  EXPECT_EQ(s.heads, 16);
  EXPECT_EQ(s.in_flight, 1);
}

TEST(AttentionSlices, StayUnderTheLimitAndHoldWholeKeyHeadsOrEvenPartsOfOne) {
  for (const int64_t length : {1, 63, 1021, 2048, 4096, 8192, 11585, 16384}) {
    for (const auto& [heads, kv_heads] : std::vector<std::pair<int64_t, int64_t>>{
             {1, 1}, {16, 16}, {32, 4}, {12, 2}, {7, 1}, {64, 8}}) {
      for (const int64_t sequences : {1, 3, 8}) {
        const int64_t bytes = attention_head_bytes(length, length);
        const AttentionSlices s = attention_slices(sequences, bytes, heads, kv_heads);
        const int64_t group = heads / kv_heads;
        EXPECT_LE(s.in_flight * s.sequences * s.heads * bytes, kAttentionBytes);
        EXPECT_EQ(heads % s.heads, 0);
        EXPECT_TRUE(s.parts == 1 ? s.heads % group == 0 : s.heads * s.parts == group);
        EXPECT_GE(s.sequences, 1);
      }
    }
  }
}

TEST(AttentionSlices, RefusesAHeadOverTheLimit) {
  EXPECT_THROW((void)attention_slices(1, attention_head_bytes(32768, 32768), 16, 16), Error);
  EXPECT_EQ(attention_slices(1, attention_head_bytes(8192, 32768), 16, 16).heads, 1);
}

}  // namespace
}  // namespace troupe
