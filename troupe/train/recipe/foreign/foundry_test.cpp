#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "troupe/train/recipe/foreign/convert_test.h"

namespace troupe {
namespace {

// Composer's FSDP and MegaBlocks' mesh: what is shared, over how many ranks.
TEST(Foundry, ItsMeshIsWhatRanksShare) {
  const auto converted = [](const std::string& fsdp, const std::string& moe = "") {
    return convert_recipe(
        "model: {name: mpt_causal_lm, ffn_config: {ffn_type: mb_dmoe, moe_num_experts: 16, "
        "moe_world_size: 8" +
            moe + "}}\n" + fsdp + "\n",
        "f.yaml", ForeignKind::kFoundry);
  };
  const auto parallel = [&](const std::string& fsdp, const std::string& moe = "") {
    return read_back(converted(fsdp, moe)).parallel;
  };
  EXPECT_EQ(parallel("").shard, ShardKind::kAuto);
  ParallelConfig p = parallel("fsdp_config: {sharding_strategy: SHARD_GRAD_OP}");
  EXPECT_EQ(p.shard, ShardKind::kFull);
  EXPECT_FALSE(p.reshard);
  EXPECT_EQ(p.expert, 8);
  EXPECT_EQ(parallel("fsdp_config: {sharding_strategy: NO_SHARD}").shard, ShardKind::kNone);
  p = parallel("fsdp_config: {sharding_strategy: HYBRID_SHARD, device_mesh: [4, 16]}");
  EXPECT_EQ(p.shard, ShardKind::kFull);
  EXPECT_EQ(p.shard_ranks, 16);
  p = parallel(
      "parallelism_config: {fsdp: {data_parallel_shard_degree: 32, "
      "data_parallel_replicate_degree: 2}}");
  EXPECT_EQ(p.shard_ranks, 32);
  EXPECT_EQ(parallel("", ", device_mesh: [64]").shard_ranks, 64);
  EXPECT_TRUE(any(converted("fsdp_config: {sharding_strategy: HYBRID_SHARD}").missing,
                  "parallel.shard_ranks: fsdp_config.sharding_strategy: HYBRID_SHARD: the ranks"));
  EXPECT_TRUE(any(converted("", ", device_mesh: [8, 8]").refused,
                  "model.ffn_config.device_mesh: 8, 8: one number"));
  EXPECT_TRUE(any(converted("fsdp_config: {sharding_strategy: MINE}").refused,
                  "fsdp_config.sharding_strategy: MINE: FULL_SHARD, SHARD_GRAD_OP"));
  const Conversion tensor = converted("tp_config: {tensor_parallel_degree: 2, strategy: ffn}");
  EXPECT_EQ(read_back(tensor).parallel.tensor, 2);
  EXPECT_TRUE(any(tensor.notes, "LLM-Foundry refuses tensor parallelism beside experts"));
  EXPECT_EQ(tensor.refused, std::vector<std::string>());
}

TEST(Foundry, ANameEndsNoQuoteOfTheCommandBesideIt) {
  const Conversion out = convert_recipe("loggers:\n  wandb: {project: \"it's; rm x\"}\n",
                                        "run.yaml", ForeignKind::kFoundry);
  const std::string word = "--project 'it'\\''s; rm x'";
  EXPECT_TRUE(any(out.mapped, word)) << out.recipe;
}

}  // namespace
}  // namespace troupe
