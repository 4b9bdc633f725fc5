#include "troupe/train/recipe/graph_faults.h"

#include <gtest/gtest.h>

#include "troupe/train/recipe/recipe_of_test.h"

namespace troupe {
namespace {

constexpr char kGraphNano[] =
    "model: {layers: 2, width: 32, heads: 4, vocab: 256, max_positions: 64,\n"
    "        moe: {experts: 4, top_k: 2, hidden: 64}}\n"
    "data: {train: [{kind: mock}], sequence: 32}\n"
    "train: {global_batch: 8, steps: 20, cuda_graph: true}\n"
    "checkpoint: {dir: run}\n";

TEST(GraphFaults, WhatChangesEachStepIsRefusedWithItsKeyAndAWayOut) {
  const struct {
    const char *key, *recipe;
  } cases[] = {
      {"run.device", "run: {device: cpu}"},
      {"run.replay", "run: {replay: routing}"},
      {"data.documents", "data: {documents: sequences}"},
      {"parallel.expert", "parallel: {expert: 2}"},
      {"parallel.tensor", "parallel: {tensor: 2}"},
      {"parallel.pipeline", "parallel: {pipeline: 2}"},
      {"parallel.context", "parallel: {context: 2}"},
      {"model.dropout", "model: {dropout: 0.1}"},
      {"model.attn_dropout", "model: {attn_dropout: 0.1}"},
      {"model.delta", "model: {delta: {}}"},
      {"model.moe.impl", "model: {moe: {impl: loop}}"},
      {"model.moe.capacity.budget", "model: {moe: {capacity: {budget: 1.5}}}"},
      {"model.moe.router.jitter", "model: {moe: {router: {jitter: 0.1}}}"},
      {"model.moe.router.force", "model: {moe: {router: {force: random}}}"},
      {"model.moe.router.force", "model: {moe: {router: {force: biased}}}"},
  };
  for (const auto& [key, recipe] : cases) {
    const std::vector<std::string> faults = graph_faults(recipe_of(recipe, kGraphNano));
    ASSERT_EQ(faults.size(), 1U) << recipe;
    EXPECT_NE(faults[0].find(std::string("does not go with ") + key + ", which "),
              std::string::npos)
        << faults[0];
    EXPECT_TRUE(faults[0].ends_with(", or leave train.cuda_graph out")) << faults[0];
  }
}

TEST(GraphFaults, WhatStaysTheSameIsLeftAlone) {
  for (const char* recipe :
       {"{}", "model: {moe: {experts: 0}}", "parallel: {expert: 1, tensor: 1}",
        "model: {moe: {router: {kind: sigmoid_bias}}}", "model: {moe: {capacity: {factor: 1.25}}}",
        "model: {moe: {router: {force: biased, force_fixed: true}}}",
        "model: {moe: {router: {force: uniform}}}", "train: {precision: fp16}", "train: {fp8: {}}",
        "train: {recompute: '1'}"}) {
    EXPECT_TRUE(graph_faults(recipe_of(recipe, kGraphNano)).empty()) << recipe;
  }
  EXPECT_TRUE(
      graph_faults(recipe_of("{model: {dropout: 0.1}, train: {cuda_graph: false}}", kGraphNano))
          .empty());
}

TEST(GraphFaults, ValidateSaysThem) {
  const Recipe recipe = recipe_of("model: {dropout: 0.1}", kGraphNano);
  try {
    validate(recipe, {});
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("train.cuda_graph: does not go with model.dropout"), std::string::npos)
        << text;
  }
}

}  // namespace
}  // namespace troupe
