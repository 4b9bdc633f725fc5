#include "troupe/distributed/params/balanced_expert_placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "troupe/core/check.h"

namespace troupe {
namespace {

using Rows = std::vector<int64_t>;

std::vector<Rows> sets_of(const ExpertPlacement& p) {
  std::vector<Rows> out;
  for (int64_t r = 0; r < p.ranks(); ++r) out.push_back(p.held_by(r));
  return out;
}

// A few experts have most of the rows.
Rows draw(std::mt19937& rng, int64_t experts) {
  Rows out;
  for (int64_t e = 0; e < experts; ++e) {
    const auto u = static_cast<int64_t>(rng() % 1000 + 1);
    out.push_back(1000000 / (u * u));
  }
  return out;
}

TEST(BalancedExpertPlacement, TheLoadIsThatOfTheBusiestRankOverTheMean) {
  const ExpertPlacement p = contiguous(4, 2);
  EXPECT_DOUBLE_EQ(rank_load(p, {3, 5, 1, 1}), 8 / 5.0);
  EXPECT_DOUBLE_EQ(rank_load(p, {0, 0, 7, 0}), 2);
  EXPECT_DOUBLE_EQ(rank_load(p, {2, 2, 1, 3}), 1);
  EXPECT_DOUBLE_EQ(rank_load(p, {0, 0, 0, 0}), 1);
}

TEST(BalancedExpertPlacement, TheLongestGoFirstAndFewExpertsMove) {
  // 5 and 4 first, then 0 to the second, 1 and 2 to the first, 3 to the second: {5, 1, 2} of 18
  // rows and {4, 0, 3} of 17. The first has more of what rank 0 holds.
  const ExpertPlacement p = balanced_expert_placement(contiguous(6, 2), {6, 5, 4, 3, 8, 9});
  EXPECT_EQ(sets_of(p), (std::vector<Rows>{{1, 2, 5}, {0, 3, 4}}));
  EXPECT_EQ(moved_experts(contiguous(6, 2), p), 2);
  EXPECT_DOUBLE_EQ(rank_load(p, {6, 5, 4, 3, 8, 9}), 18 * 2 / 35.0);
}

TEST(BalancedExpertPlacement, TiesGoToTheLowerExpertAndRank) {
  EXPECT_EQ(sets_of(balanced_expert_placement(contiguous(4, 2), {1, 1, 1, 1})),
            (std::vector<Rows>{{0, 2}, {1, 3}}));
  EXPECT_EQ(sets_of(balanced_expert_placement(contiguous(4, 2), {0, 0, 0, 0})),
            sets_of(contiguous(4, 2)));
}

TEST(BalancedExpertPlacement, WhatItChoseItChoosesAgain) {
  std::mt19937 rng(5);
  for (int i = 0; i < 100; ++i) {
    const Rows rows = draw(rng, 24);
    const ExpertPlacement once = balanced_expert_placement(contiguous(24, 4), rows);
    EXPECT_EQ(sets_of(balanced_expert_placement(once, rows)), sets_of(once)) << i;
  }
}

TEST(BalancedExpertPlacement, RanksKeepTheirNumbersOfExpertsAlsoUnevenOnes) {
  std::mt19937 rng(6);
  const ExpertPlacement uneven = listed(3, {{0}, {0}, {0}, {0}, {1}, {2}, {2}});
  for (int i = 0; i < 50; ++i) {
    const auto sets = sets_of(balanced_expert_placement(uneven, draw(rng, 7)));
    EXPECT_EQ(sets[0].size(), 4U);
    EXPECT_EQ(sets[1].size(), 1U);
    EXPECT_EQ(sets[2].size(), 2U);
  }
}

// Against all ways to halve eight experts: within 4/3 of the best, and mostly the best.
TEST(BalancedExpertPlacement, IsNearTheBestOfAllPlacements) {
  std::mt19937 rng(7);
  int best_found = 0;
  for (int i = 0; i < 200; ++i) {
    const Rows rows = draw(rng, 8);
    double best = 2;
    for (unsigned mask = 0; mask < 256; ++mask) {
      std::vector<std::vector<int32_t>> owners;
      int ones = 0;
      for (unsigned e = 0; e < 8; ++e) {
        owners.push_back({static_cast<int32_t>(mask >> e & 1U)});
        ones += owners.back()[0];
      }
      if (ones == 4) best = std::min(best, rank_load(listed(2, owners), rows));
    }
    const double got = rank_load(balanced_expert_placement(contiguous(8, 2), rows), rows);
    EXPECT_GE(got, best - 1e-12);
    EXPECT_LE(got, best * 4 / 3);
    best_found += got < best + 1e-12;
  }
  EXPECT_GT(best_found, 100);
}

TEST(BalancedExpertPlacement, RefusesReplicasAndRowsOfOtherExperts) {
  EXPECT_THROW(rank_load(listed(2, {{0, 1}, {1}}), {1, 1}), Error);
  EXPECT_THROW(balanced_expert_placement(contiguous(4, 2), {1, 1}), Error);
}

}  // namespace
}  // namespace troupe
