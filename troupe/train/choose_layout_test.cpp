#include "troupe/train/choose_layout.h"

#include <gtest/gtest.h>

#include "troupe/core/config.h"

namespace troupe {
namespace {

constexpr double kGiB = double{1 << 30};

Recipe recipe_of(const std::string& more) {
  Recipe r;
  read_config(parse_yaml("data: {sequence: 1024}\n"
                         "train: {global_batch: 64, micro_batch: 1, steps: 10}\n"
                         "checkpoint: {dir: run}\n",
                         "base"),
              r);
  read_config(parse_yaml(more, "more"), r);
  return r;
}

ParallelConfig chosen(const std::string& more, const RanksAtHand& ranks) {
  return choose_layout(recipe_of(more), ranks).parallel;
}

TEST(ChooseLayout, ExpertsStayInsideAHost) {
  const std::string olmoe = "model: {preset: olmoe-1b-7b}";
  EXPECT_EQ(chosen(olmoe, {.world = 64, .per_host = 8, .on_gpu = true}).expert, 8);
  EXPECT_EQ(chosen(olmoe, {.world = 4, .per_host = 4, .on_gpu = true}).expert, 4);
  EXPECT_EQ(chosen(olmoe, {.world = 6, .per_host = 6, .on_gpu = true}).expert, 2);
  EXPECT_EQ(chosen("model: {preset: mixtral-8x7b}", {.world = 64, .per_host = 16}).expert, 8);
  EXPECT_EQ(chosen("model: {layers: 1, width: 32, heads: 2, vocab: 64, ffn: 64, first_dense: 1}",
                   {.world = 4, .per_host = 4})
                .expert,
            1);
}

TEST(ChooseLayout, AllStateIsSharedWhereTheOptimizersAloneDoesNotFit) {
  const std::string mixtral = "model: {preset: mixtral-8x7b}";
  const RanksAtHand large{.world = 16, .per_host = 8, .memory = 200 * kGiB, .on_gpu = true};
  EXPECT_EQ(chosen(mixtral, large).shard, ShardKind::kZero1);
  RanksAtHand small = large;
  small.memory = 75 * kGiB;
  const LayoutChoice choice = choose_layout(recipe_of(mixtral), small);
  EXPECT_EQ(choice.parallel.shard, ShardKind::kFull);
  EXPECT_NE(choice.why.find("with the optimizer's alone"), std::string::npos) << choice.why;
  EXPECT_NE(choice.why.find("of 75.0"), std::string::npos) << choice.why;
}

TEST(ChooseLayout, WhatIsGivenStays) {
  const RanksAtHand ranks{.world = 16, .per_host = 8, .memory = kGiB, .on_gpu = true};
  const ParallelConfig c =
      chosen("model: {preset: olmoe-1b-7b}\nparallel: {expert: 4, shard: zero1}", ranks);
  EXPECT_EQ(c.expert, 4);
  EXPECT_EQ(c.shard, ShardKind::kZero1);
  EXPECT_EQ(chosen("model: {preset: olmoe-1b-7b}\nparallel: {expert: 5}", ranks).expert, 5);
}

}  // namespace
}  // namespace troupe
