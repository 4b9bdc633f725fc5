#include "troupe/train/forecast/prove_layout.h"

#include <gtest/gtest.h>

#include <string>

#include "troupe/train/forecast/choose_layout.h"
#include "troupe/train/recipe/recipe_of_test.h"

namespace troupe {
namespace {

constexpr const char* kProvenModel =
    "model: {layers: 4, width: 32, heads: 4, vocab: 64, max_positions: 32, ffn: 64, "
    "tie_embeddings: true, mtp: {depth: 1}, moe: {experts: 8, top_k: 2, hidden: 16}}\n"
    "data: {sequence: 16}\n"
    "train: {global_batch: 7, micro_batch: 1, steps: 10}\n"
    "checkpoint: {dir: run}\n"
    "run: {device: cpu}\n";

LayoutProof proof_of(const std::string& parallel, int64_t batch) {
  const Recipe recipe = recipe_of("parallel: {" + parallel + "}\n", kProvenModel);
  return prove_layout(recipe, settled(recipe.parallel, needs_of(recipe, 8, 8)), batch, 1, 8);
}

// Seven microbatches over two replicas: four each, the last of one without rows.
TEST(ProveLayout, ARunsOwnStepIsProven) {
  for (const std::string parallel :
       {"pipeline: 2, tensor: 2, expert: 2, shard: zero1", "pipeline: 4, expert: 2, shard: full",
        "pipeline: 2, tensor: 2, virtual: 2, expert: 4, shard: none",
        "tensor: 2, context: 2, expert: 8, shard: full"}) {
    const LayoutProof proof = proof_of(parallel, 7);
    EXPECT_EQ(proof.proven, proof.microbatches) << parallel;
    EXPECT_EQ(proof.microbatches, 4) << parallel;
    EXPECT_GT(proof.events, 1000) << parallel;
    const std::string text =
        "8 ranks, 4 microbatches: " + std::to_string(proof.events) + " events end in every order";
    EXPECT_TRUE(to_text(proof).starts_with(text)) << to_text(proof);
  }
}

TEST(ProveLayout, UpdatesWithinBackwardAreProvenInEveryFormOfState) {
  for (const std::string shard : {"none", "zero1", "full"}) {
    for (const int batch : {8, 13}) {
      const Recipe recipe = recipe_of(
          "parallel: {expert: 2, shard: " + shard + "}\ntrain: {update: in_backward, clip: 0}\n",
          kProvenModel);
      const ParallelConfig layout = settled(recipe.parallel, needs_of(recipe, 8, 8));
      const LayoutProof proof = prove_layout(recipe, layout, batch, 1, 8);
      EXPECT_EQ(proof.proven, proof.microbatches) << shard;
      EXPECT_GT(proof.events, 1000) << shard;
    }
  }
}

TEST(ProveLayout, OfALongStepTheLastMicrobatchesAreProven) {
  const LayoutProof proof = proof_of("expert: 2, shard: zero1", 1 << 20);
  EXPECT_EQ(proof.microbatches, 1 << 17);
  EXPECT_GT(proof.proven, 10);
  EXPECT_LT(proof.proven, 1000);
  EXPECT_LT(proof.events, 1'000'000);
  EXPECT_NE(to_text(proof).find(" of 131072 microbatches"), std::string::npos) << to_text(proof);
}

}  // namespace
}  // namespace troupe
