#include "troupe/train/recipe/offload_faults.h"

#include <gtest/gtest.h>

#include "troupe/train/recipe/recipe.h"
#include "troupe/train/recipe/recipe_of_test.h"

namespace troupe {
namespace {

constexpr char kOffloadNano[] =
    "model: {layers: 4, width: 32, heads: 4, vocab: 256, max_positions: 64,\n"
    "        moe: {experts: 4, top_k: 2, hidden: 64}}\n"
    "data: {train: [{kind: mock}], sequence: 32}\n"
    "train: {global_batch: 8, steps: 20, offload_layers: 2}\n"
    "checkpoint: {dir: run}\n";

TEST(OffloadFaults, WhatHasNothingToOffloadIsRefusedWithItsKey) {
  const struct {
    const char *recipe, *says;
  } cases[] = {
      {"train: {offload_layers: 5}", "is 5, and model.layers is 4"},
      {"train: {recompute: '1'}", "does not go with train.recompute of layer 0"},
      {"train: {recompute: '[0]*1+[1]*3'}", "or set it to 1"},
      {"{train: {cuda_graph: true}, run: {device: cuda}}", "does not go with train.cuda_graph"},
      {"parallel: {overlap: experts, expert: 2, shard: zero1}",
       "does not go with parallel.overlap"},
  };
  for (const auto& [recipe, says] : cases) {
    const std::vector<std::string> faults = offload_faults(recipe_of(recipe, kOffloadNano));
    ASSERT_EQ(faults.size(), 1U) << recipe;
    EXPECT_NE(faults[0].find(says), std::string::npos) << faults[0];
  }
}

TEST(OffloadFaults, OtherLayersMayBeRecomputedAndRanksShareTheWork) {
  for (const char* recipe :
       {"{}", "train: {offload_layers: 4}", "train: {recompute: '[0]*2+[1]*2'}",
        "parallel: {tensor: 2}", "parallel: {pipeline: 2}", "parallel: {expert: 2}",
        "model: {moe: {recompute: layer}}", "train: {offload_layers: 0, recompute: '1'}"}) {
    EXPECT_TRUE(offload_faults(recipe_of(recipe, kOffloadNano)).empty()) << recipe;
  }
}

TEST(OffloadFaults, ValidateSaysThem) {
  try {
    validate(recipe_of("train: {recompute: '1'}", kOffloadNano), {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("train.offload_layers: does not go with"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace troupe
