#include "troupe/checkpoint/state/load_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace troupe {
namespace {

using Wants = std::vector<std::vector<Want>>;

Box rows(int64_t global, int64_t from, int64_t to) {
  return {{global, 3}, {from, 0}, {to - from, 3}};
}

TEST(LoadPlan, OneRankReadsASliceOfWhichTwoNeedAPart) {
  // Slices of rows 0..3 and 4..7; rank 0 has rows 0..5, rank 1 rows 6..7.
  const std::vector<StoredBoxes> stored = {{4, {rows(8, 0, 4), rows(8, 4, 8)}}};
  const auto rounds = plan_reads(stored, {{{0, rows(8, 0, 6)}}, {{0, rows(8, 6, 8)}}}, 1000);
  ASSERT_EQ(rounds.size(), 1u);
  ASSERT_EQ(rounds[0].size(), 1u);
  const SharedSlice& shared = rounds[0][0];
  EXPECT_EQ(shared.slice, 1u);
  EXPECT_EQ(shared.reader, 0);
  ASSERT_EQ(shared.cuts.size(), 2u);
  EXPECT_EQ(shared.cuts[0].box, rows(8, 4, 6));
  EXPECT_EQ(shared.cuts[1].rank, 1);
  EXPECT_EQ(shared.cuts[1].box, rows(8, 6, 8));
}

TEST(LoadPlan, TwoPartsOfOneRankShareASliceToo) {
  const std::vector<StoredBoxes> stored = {{4, {rows(8, 0, 8)}}};
  const auto rounds = plan_reads(stored, {{{0, rows(8, 0, 1)}, {0, rows(8, 1, 8)}}}, 1000);
  ASSERT_EQ(rounds.size(), 1u);
  EXPECT_EQ(rounds[0][0].cuts[1].want, 1u);
}

TEST(LoadPlan, ReadersTakeTurnsAndRoundsAreBounded) {
  // Six slices of 12 bytes that both ranks need whole; 24 bytes a rank and round.
  StoredBoxes stored{4, {}};
  for (int64_t r = 0; r < 6; ++r) stored.slices.push_back(rows(6, r, r + 1));
  const Wants wants = {{{0, rows(6, 0, 6)}}, {{0, rows(6, 0, 6)}}};
  const auto rounds = plan_reads({stored}, wants, 24);
  ASSERT_EQ(rounds.size(), 2u);
  EXPECT_EQ(rounds[0].size(), 4u);
  EXPECT_EQ(rounds[1].size(), 2u);
  int64_t of_first = 0;
  for (const auto& round : rounds) {
    for (const SharedSlice& shared : round) of_first += shared.reader == 0;
  }
  EXPECT_EQ(of_first, 3);
  EXPECT_EQ(plan_reads({stored}, wants, 1).size(), 3u);  // a slice a rank, however large
}

TEST(LoadPlan, WantsAreTheSameOutOfTheirText) {
  const std::vector<StoredBoxes> stored = {{4, {Box::whole({})}}, {4, {rows(8, 0, 8)}}};
  const std::vector<Want> wants = {{1, rows(8, 2, 5)}, {0, Box::whole({})}};
  const std::vector<Want> back = wants_from(to_text(wants), stored);
  ASSERT_EQ(back.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(back[i].tensor, wants[i].tensor);
    EXPECT_EQ(back[i].box, wants[i].box);
  }
  EXPECT_ANY_THROW(wants_from("2 0 0\n", stored));
  EXPECT_ANY_THROW(wants_from("1 0 0 9 3\n", stored));
  EXPECT_ANY_THROW(wants_from("1 0\n", stored));
}

TEST(LoadPlan, AnyCutsHaveEachElementFromOneReader) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const int64_t n = 1 + static_cast<int64_t>(random() % 20);
    const auto cuts_of = [&] {
      std::vector<int64_t> at = {0, n};
      for (int64_t i = 1; i < n; ++i) {
        if (random() % 4 == 0) at.insert(at.end() - 1, i);
      }
      return at;
    };
    const std::vector<int64_t> stored_at = cuts_of(), wanted_at = cuts_of();
    StoredBoxes stored{4, {}};
    for (size_t i = 1; i < stored_at.size(); ++i) {
      stored.slices.push_back(rows(n, stored_at[i - 1], stored_at[i]));
    }
    Wants wants(1 + random() % 4);
    for (size_t i = 1; i < wanted_at.size(); ++i) {
      wants[random() % wants.size()].push_back({0, rows(n, wanted_at[i - 1], wanted_at[i])});
    }
    std::map<size_t, int64_t> covered;  // elements of each shared slice
    for (const auto& round : plan_reads({stored}, wants, 50)) {
      for (const SharedSlice& shared : round) {
        EXPECT_FALSE(covered.contains(shared.slice));
        bool reads_for_itself = false;
        for (const SharedSlice::Cut& cut : shared.cuts) {
          covered[shared.slice] += cut.box.numel();
          reads_for_itself |= cut.rank == shared.reader;
        }
        EXPECT_TRUE(reads_for_itself);
      }
    }
    for (const auto& [slice, elements] : covered) {
      EXPECT_EQ(elements, stored.slices[slice].numel());
    }
  }
}

}  // namespace
}  // namespace troupe
