#include "troupe/train/recipe/bits.h"

#include <gtest/gtest.h>

#include <string>

#include "troupe/core/check.h"
#include "troupe/train/recipe/recipe_of_test.h"

namespace troupe {
namespace {

constexpr char kBitsNano[] =
    "model: {layers: 4, width: 32, heads: 4, vocab: 256, max_positions: 64,\n"
    "        moe: {experts: 4, top_k: 2, hidden: 64}}\n"
    "data: {train: [{kind: mock}], sequence: 32}\n"
    "train: {global_batch: 8, micro_batch: 2, steps: 20}\n"
    "run: {device: cpu, bits: layout}\n"
    "checkpoint: {dir: run}\n";

TEST(RecipeBits, WhatIsNotTakenIsRefusedWithItsKeyAndTheWayOut) {
  const struct {
    const char *recipe, *key, *says;
  } cases[] = {
      {"parallel: {tensor: 2}", "parallel.tensor", "set it to 1"},
      {"parallel: {context: 2}", "parallel.context", "set it to 1"},
      {"parallel: {expert_tensor: 2}", "parallel.expert_tensor", "expert_tensor 1"},
      {"parallel: {expert: 8, dispatch: exact}", "parallel.expert", "as experts"},
      {"parallel: {expert: 2}", "parallel.dispatch", "set it to exact"},
      {"parallel: {expert: 2, dispatch: exact, dispatcher: {kind: all_gather}}",
       "parallel.dispatcher", "take auto or all_to_all"},
      {"parallel: {sum: bf16}", "parallel.sum", "set it to fp32"},
      {"parallel: {overlap: experts}", "parallel.overlap", "set it to none"},
      {"parallel: {rebalance: {every: 5}}", "parallel.rebalance.every", "set it to 0"},
      {"run: {device: cuda}", "run.device", "must be cpu"},
      {"run: {device: auto}", "run.device", "must be cpu"},
      {"run: {deterministic: false}", "run.deterministic", "leave it out"},
      {"train: {precision: fp16}", "train.precision", "must be fp32, bf16 or auto"},
      {"train: {precision: fp64}", "train.precision", "must be fp32, bf16 or auto"},
      {"train: {micro_batch: null}", "train.micro_batch", "give it"},
      {"train: {global_batch: 100000}", "train.micro_batch", "make it larger"},
      {"train: {teacher: {path: x}}", "train.teacher", "leave it out"},
      {"train: {loss: dpo}", "train.loss", "take cross_entropy"},
      {"train: {optimizer: {kind: muon}}", "train.optimizer", "take adamw, sgd or lion"},
      {"train: {optimizer: {moments: int8}}", "train.optimizer.moments", "take f32 or bf16"},
      {"model: {lora: {rank: 4}}", "model.lora", "leave it out"},
      {"model: {moe: {router: {kind: quantile}}}", "model.moe.router.kind", "take topk_softmax"},
      {"model: {moe: {router: {balance: {global_loss: 0.1}}}}",
       "model.moe.router.balance.global_loss", "take aux_loss"},
      {"model: {moe: {router: {balance: {batched_loss: 0.1, batched_scope: all}}}}",
       "model.moe.router.balance.batched_scope", "take rank or group"},
      {"model: {moe: {capacity: {factor: 1, pad: true}}}", "model.moe.capacity.pad",
       "set it to false"},
      {"model: {moe: {capacity: {budget: 2}}}", "model.moe.capacity.budget", "set it to 0"},
      {"model: {moe: {impl: loop}}", "model.moe.impl", "take grouped"},
      {"model: {moe: {quantize: {inputs: 8}}}", "model.moe.quantize", "leave it out"},
  };
  for (const auto& [recipe, key, says] : cases) {
    const auto faults = bits_faults(recipe_of(recipe, kBitsNano));
    ASSERT_EQ(faults.size(), 1U) << recipe;
    EXPECT_EQ(faults[0].first, key) << recipe;
    EXPECT_NE(faults[0].second.find(says), std::string::npos) << faults[0].second;
    EXPECT_NE(faults[0].second.find("or set run.bits to repeat"), std::string::npos) << recipe;
    Recipe repeat = recipe_of(recipe, kBitsNano);
    repeat.run.bits = Bits::kRepeat;
    EXPECT_TRUE(bits_faults(repeat).empty()) << recipe;
  }
}

TEST(RecipeBits, DataRanksPipelinesAndExactExpertsAreTaken) {
  for (const char* recipe :
       {"{}", "parallel: {data: 4, shard: full, shard_ranks: 2}", "parallel: {pipeline: 2}",
        "parallel: {expert: 4, dispatch: exact}", "train: {precision: bf16}",
        "train: {optimizer: {kind: lion, moments: bf16}}",
        "model: {moe: {router: {kind: sigmoid_bias, balance: {seq_loss: 0.1}}}}",
        "model: {moe: {experts: 0}, ffn: 64}"}) {
    EXPECT_TRUE(bits_faults(recipe_of(recipe, kBitsNano)).empty()) << recipe;
  }
}

TEST(RecipeBits, OpenAxesThatAreNotTakenAreOfOneRank) {
  const ParallelConfig open = with_axes_of_bits(recipe_of("{}", kBitsNano)).parallel;
  EXPECT_EQ(open.tensor, 1);
  EXPECT_EQ(open.context, 1);
  EXPECT_EQ(open.expert_tensor, 1);
  EXPECT_EQ(open.expert, 1) << "rows are not dispatched exactly";
  EXPECT_EQ(open.pipeline, 0);
  const Recipe exact = with_axes_of_bits(recipe_of("parallel: {dispatch: exact}", kBitsNano));
  EXPECT_EQ(exact.parallel.expert, 0);
  EXPECT_EQ(exact.parallel.dispatcher.kind(), "all_to_all");
  const Recipe repeat = recipe_of("run: {bits: repeat}", kBitsNano);
  EXPECT_EQ(with_axes_of_bits(repeat).parallel.tensor, 0);
}

TEST(RecipeBits, ValidateSaysThem) {
  try {
    validate(recipe_of("parallel: {tensor: 2}", kBitsNano), {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("parallel.tensor: does not go with run.bits layout"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(require_bits(recipe_of("parallel: {context: 2}", kBitsNano)), Error);
}

}  // namespace
}  // namespace troupe
