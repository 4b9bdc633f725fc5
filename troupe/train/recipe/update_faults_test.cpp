#include "troupe/train/recipe/update_faults.h"

#include <gtest/gtest.h>

#include "troupe/train/recipe/recipe.h"
#include "troupe/train/recipe/recipe_of_test.h"

namespace troupe {
namespace {

constexpr char kUpdateNano[] =
    "model: {layers: 2, width: 32, heads: 4, vocab: 256, max_positions: 64,\n"
    "        moe: {experts: 4, top_k: 2, hidden: 64}}\n"
    "data: {train: [{kind: mock}], sequence: 32}\n"
    "train: {global_batch: 8, steps: 20, clip: 0, update: in_backward}\n"
    "checkpoint: {dir: run}\n";

TEST(UpdateFaults, WhatJudgesAWholeStepIsRefusedWithAWayOut) {
  const struct {
    const char *recipe, *path, *says;
  } cases[] = {
      {"train: {clip: 1}", "train.update", "set train.clip to 0, or train.clip_by to last_step"},
      {"parallel: {pipeline: 2}", "train.update", "parallel.pipeline"},
      {"train: {precision: fp16}", "train.update", "take bf16"},
      {"train: {precision: fp64}", "train.update", "take fp32"},
      {"train: {spike: {skip: true}}", "train.update", "train.spike.skip"},
      {"model: {moe: {capacity: {budget: 1.5}}}", "train.update", "model.moe.capacity.budget"},
      {"train: {clip_by: last_step}", "train.clip_by", "train.clip is 0"},
  };
  for (const auto& [recipe, path, says] : cases) {
    const auto faults = update_faults(recipe_of(recipe, kUpdateNano));
    ASSERT_EQ(faults.size(), 1U) << recipe;
    EXPECT_EQ(faults[0].first, path);
    EXPECT_NE(faults[0].second.find(says), std::string::npos) << faults[0].second;
  }
}

TEST(UpdateFaults, TheDefaultAndOtherClippingsAreNot) {
  for (const char* recipe :
       {"{}", "train: {clip: 1, clip_by: last_step}", "train: {update: after_backward, clip: 1}",
        "train: {micro_batch: 2}", "train: {offload_state: true, optimizer: {moments: int8}}",
        "train: {clip: 1, clip_by: last_step, update: after_backward}"}) {
    EXPECT_TRUE(update_faults(recipe_of(recipe, kUpdateNano)).empty()) << recipe;
    validate(recipe_of(recipe, kUpdateNano), {});
  }
}

TEST(UpdateFaults, ValidateSaysThem) {
  try {
    validate(recipe_of("train: {clip: 1}", kUpdateNano), {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("train.update: in_backward updates layers before"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace troupe
