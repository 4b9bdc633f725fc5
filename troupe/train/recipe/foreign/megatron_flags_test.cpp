// Flags of Megatron-LM's own scripts of DeepSeek, Kimi and gpt-oss.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "troupe/core/config/config.h"
#include "troupe/core/config/yaml.h"
#include "troupe/train/recipe/foreign/convert_test.h"

namespace troupe {
namespace {

constexpr const char* kModel =
    "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length "
    "32 "
    "--max-position-embeddings 32 --micro-batch-size 1 --global-batch-size 4 --train-iters 10 --lr "
    "1e-3 "
    "--min-lr 1e-4 --bf16 --mock-data --tokenizer-type NullTokenizer --vocab-size 127 --swiglu "
    "--disable-bias-linear --normalization RMSNorm --position-embedding-type rope --num-experts 8 "
    "--moe-router-topk 2 --moe-ffn-hidden-size 32 --moe-aux-loss-coeff 1e-2 "
    "--moe-router-load-balancing-type aux_loss --ffn-hidden-size 128 --save run ";

Conversion converted(const std::string& more) {
  return convert_recipe(kModel + more, "run.sh", ForeignKind::kMegatron);
}

// The recipe, which must pass all checks but those of data files.
ModelConfig model_of(const std::string& more) {
  const Conversion out = converted(more);
  EXPECT_EQ(out.refused, std::vector<std::string>()) << more;
  Recipe recipe;
  read_config(parse_yaml(out.recipe, "recipe"), recipe);
  EXPECT_NO_THROW(validate(recipe.model)) << out.recipe;
  return recipe.model;
}

constexpr const char* kLatent =
    "--multi-latent-attention --q-lora-rank 24 --kv-lora-rank 16 --qk-head-dim 16 "
    "--qk-pos-emb-head-dim 8 --v-head-dim 16 --kv-channels 16 ";

TEST(MegatronFlags, LatentAttentionOfDeepSeeksScriptsIsARecipeThatRuns) {
  const ModelConfig m = model_of(
      std::string(kLatent) +
      "--qk-layernorm --rotary-scaling-factor 40 --mscale 1.0 --mscale-all-dim 1.0 "
      "--original-max-position-embeddings 16 --no-check-for-nan-in-loss-and-grad --no-save-optim "
      "--exit-interval 5 --enable-experimental --use-persistent-ckpt-worker");
  ASSERT_TRUE(m.mla.has_value());
  EXPECT_EQ(m.mla->q_rank, 24);
  EXPECT_EQ(m.qk_norm, QkNorm::kNone);
  EXPECT_EQ(m.head_dim, 0);
  EXPECT_TRUE(m.rope.interleaved);
  EXPECT_EQ(m.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(m.rope.factor, 40);
  EXPECT_EQ(m.rope.original_positions, 16);
  EXPECT_EQ(m.rope.mscale, 1);
  EXPECT_EQ(m.rope.mscale_all_dim, 1);
  // At a factor of 1, and by plain rope, nothing is scaled.
  EXPECT_EQ(model_of(std::string(kLatent) + "--qk-layernorm --mscale 1.0").rope.scaling,
            RopeScaling::kNone);
  EXPECT_EQ(
      model_of(std::string(kLatent) + "--qk-layernorm --rope-type rope --rotary-scaling-factor 40")
          .rope.scaling,
      RopeScaling::kNone);
  EXPECT_TRUE(any(converted(kLatent).refused, "latents always have norms here"));
  // Without latents the flag is that of each head.
  const ModelConfig plain = model_of("--qk-layernorm --kv-channels 32");
  EXPECT_EQ(plain.qk_norm, QkNorm::kHead);
  EXPECT_EQ(plain.head_dim, 32);
}

// There its norms take --norm-epsilon as all others do, and its plain embedding no scaling of Llama 3.
TEST(MegatronFlags, LatentAttentionHasItsNormsEpsilonAndNoScalingButYarns) {
  const std::string latent = std::string(kLatent) + "--qk-layernorm ";
  EXPECT_EQ(model_of(latent).mla->eps, 1e-5);  // the default there
  EXPECT_EQ(model_of(latent + "--norm-epsilon 3e-6").mla->eps, 3e-6);
  EXPECT_EQ(model_of(latent + "--norm-epsilon 3e-6").norm.eps, 3e-6);
  for (const char* scaled :
       {"--rope-type rope --use-rope-scaling --rope-scaling-factor 4",
        "--rope-type rope --rotary-seq-len-interpolation-factor 4", "--use-rope-scaling"}) {
    const RopeConfig rope = model_of(latent + scaled).rope;
    EXPECT_EQ(rope.scaling, RopeScaling::kNone) << scaled;
    EXPECT_EQ(rope.factor, 1) << scaled;
  }
  EXPECT_EQ(model_of(latent + "--use-rope-scaling --rotary-scaling-factor 40").rope.scaling,
            RopeScaling::kYarn);
  EXPECT_TRUE(any(converted(latent + "--use-rope-scaling").ignored,
                  "--use-rope-scaling: with --multi-latent-attention it has no effect there"));
  EXPECT_EQ(model_of("--use-rope-scaling").rope.scaling, RopeScaling::kLlama3);
}

TEST(MegatronFlags, SinksAndWindowsOfGptOssAreMapped) {
  const ModelConfig m =
      model_of("--softmax-type learnable --window-size \"(8,0)\" --window-attn-skip-freq 2");
  EXPECT_TRUE(m.sinks);
  EXPECT_EQ(m.window, 9);
  std::vector<int64_t> windows;
  for (int64_t i = 0; i < 4; ++i) windows.push_back(layer_config(m, i).window);
  EXPECT_EQ(windows, (std::vector<int64_t>{9, 0, 9, 0}));
  const ModelConfig list = model_of("--window-size 4,0 --window-attn-skip-freq '([1]*3+[0]*1)'");
  windows.clear();
  for (int64_t i = 0; i < 4; ++i) windows.push_back(layer_config(list, i).window);
  EXPECT_EQ(windows, (std::vector<int64_t>{5, 5, 5, 0}));
  EXPECT_EQ(model_of("--window-size -1,0").window, 0);
  EXPECT_TRUE(any(converted("--window-size 4,4").refused, "the right one 0"));
  EXPECT_TRUE(any(converted("--softmax-type off-by-one").refused, "vanilla and learnable"));
}

TEST(MegatronFlags, TheBackendIsOurs) {
  const Conversion gloo = converted("--distributed-backend gloo");
  Recipe recipe;
  read_config(parse_yaml(gloo.recipe, "recipe"), recipe);
  EXPECT_EQ(recipe.parallel.backend, CommBackend::kGloo);
  EXPECT_TRUE(any(converted("--distributed-backend nccl").ignored, "NCCL between GPUs"));
  EXPECT_TRUE(any(converted("--distributed-backend mpi").refused, "nccl and gloo are supported"));
}

// As Megatron-LM's own test cases have it, where the folders are variables of their caller.
TEST(MegatronFlags, AFolderToLoadThatTheCallerGivesIsToBeFilledIn) {
  const Conversion out = converted("--load ${LOAD_PATH}");
  EXPECT_TRUE(any(out.missing, "--load ${LOAD_PATH} is given from outside"));
  EXPECT_TRUE(out.refused.empty());
  EXPECT_TRUE(any(converted("--load elsewhere").refused, "another folder than --save"));
}

TEST(MegatronFlags, MegatronDeepSpeedNamesNormsInSmallLetters) {
  EXPECT_EQ(model_of("--normalization rmsnorm").norm.kind, NormForm::kRms);
  EXPECT_EQ(model_of("--normalization layernorm").norm.kind, NormForm::kLayer);
  EXPECT_TRUE(any(converted("--normalization groupnorm").refused, "LayerNorm and RMSNorm"));
}

Recipe recipe_of(const std::string& more) {
  const Conversion out = converted(more);
  EXPECT_EQ(out.refused, std::vector<std::string>()) << more;
  EXPECT_EQ(out.faults, std::vector<std::string>()) << more;
  Recipe recipe;
  read_config(parse_yaml(out.recipe, "recipe"), recipe);
  return recipe;
}

TEST(MegatronFlags, AWarmUpMayBeginAboveZero) {
  const Recipe r = recipe_of("--lr-warmup-init 1e-4 --lr-warmup-iters 2");
  EXPECT_DOUBLE_EQ(std::get<LinearLr>(r.train.schedule).warmup_from, 0.1);
}

// Thresholds are tokens there: 3,200 of them are 100 sequences of 32.
TEST(MegatronFlags, AScheduleOfBatchesIsARamp) {
  std::string model = kModel;
  const std::string batch = "--global-batch-size 4 ";
  model.erase(model.find(batch), batch.size());
  const auto ramp = [&](const std::string& schedule) {
    return convert_recipe(model + "--step-batch-size-schedule " + schedule, "run.sh",
                          ForeignKind::kMegatron);
  };
  const Conversion out = ramp("0:2 3.2K:4 \"0.0064M:8\"");
  EXPECT_EQ(out.refused, std::vector<std::string>());
  Recipe r;
  read_config(parse_yaml(out.recipe, "recipe"), r);
  EXPECT_EQ(r.train.global_batch, 8);
  ASSERT_TRUE(r.train.batch_ramp.has_value());
  ASSERT_EQ(r.train.batch_ramp->stages.size(), 2U);
  EXPECT_EQ(r.train.batch_ramp->stages[0].batch, 2);
  EXPECT_EQ(r.train.batch_ramp->stages[0].until, 100);
  EXPECT_EQ(r.train.batch_ramp->stages[1].batch, 4);
  EXPECT_EQ(r.train.batch_ramp->stages[1].until, 200);
  for (const char* bad : {"100:2 200:4", "0:2 0:4", "0:x", "0", "0:2 4"}) {
    EXPECT_TRUE(any(ramp(bad).refused, "TOKENS:BATCH pairs")) << bad;
  }
}

TEST(MegatronFlags, ARateOfTheTableAndTheHeadIsAGroup) {
  const Recipe r = recipe_of(
      "--untie-embeddings-and-output-weights --decoupled-lr 2e-3 --decoupled-min-lr 2e-4");
  const auto& groups = base_of(r.train.optimizer).groups;
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].names, "embed.tokens");
  EXPECT_EQ(groups[1].names, "head.weight");
  EXPECT_DOUBLE_EQ(groups[1].lr_scale, 2);
  EXPECT_TRUE(any(converted("--decoupled-lr 2e-3").refused, "a multiple of the others'"));
  EXPECT_TRUE(any(converted("--decoupled-min-lr 1e-4").ignored, "has no effect there"));
}

TEST(MegatronFlags, EightBitsAreOfAllProductsThatFit) {
  const std::string wide = "--hidden-size 128 --moe-ffn-hidden-size 128 ";
  const Recipe r = recipe_of(wide + "--fp8-format hybrid --fp8-recipe blockwise --no-fp8-wgrad " +
                             "--first-last-layers-bf16 --num-layers-at-end-in-bf16 0");
  ASSERT_TRUE(r.train.fp8.has_value());
  EXPECT_EQ(r.train.fp8->recipe, Fp8Recipe::kBlock);
  EXPECT_EQ(r.train.fp8->weight_grad, Fp8WeightGrad::kBf16);
  EXPECT_EQ(r.train.fp8->skip_first, 1);
  EXPECT_EQ(r.train.fp8->skip_last, 0);
  EXPECT_TRUE(r.train.fp8->attention);
  EXPECT_FALSE(r.train.fp8->ffn);  // there is neither a dense layer nor a shared expert
  const Recipe shared =
      recipe_of(wide + "--fp8-format e4m3 --moe-shared-expert-intermediate-size 256");
  EXPECT_TRUE(shared.train.fp8->ffn);
  EXPECT_EQ(shared.train.fp8->recipe, Fp8Recipe::kRow);
  const std::string one_key_head = "--group-query-attention --num-query-groups 1 ";
  const Conversion keys = converted(wide + one_key_head + "--fp8-format e4m3");
  EXPECT_TRUE(any(keys.notes,
                  "in bf16 stay those of train.fp8.attention: q, k, v and out have a "
                  "side of 32"));
  EXPECT_FALSE(any(keys.mapped, "train.fp8.attention: true"));
  EXPECT_TRUE(any(converted("--fp8-format e4m3").deferred, "experts see a width of 64"));
  EXPECT_TRUE(any(converted("--fp8-recipe delayed").ignored, "without --fp8-format"));
}

// There a history has one step, and of a longer one the newest is read, unless flags say otherwise.
TEST(MegatronFlags, Q8_21_DelayedScalesKeepTheirHistory) {
  const std::string wide = "--hidden-size 128 --moe-ffn-hidden-size 128 --fp8-format hybrid ";
  const auto history = [&](const std::string& more) {
    const Recipe r = recipe_of(wide + "--fp8-recipe delayed " + more);
    EXPECT_EQ(r.train.fp8->recipe, Fp8Recipe::kDelayed) << more;
    return r.train.fp8->history;
  };
  const std::string longer = "--fp8-amax-history-len 1024 ";
  EXPECT_EQ(history(""), 1);
  EXPECT_EQ(history(longer + "--fp8-amax-compute-algo max"), 1024);
  EXPECT_EQ(history(longer), 1);
  const Conversion newest =
      converted(wide + longer + "--fp8-recipe delayed --fp8-amax-compute-algo most_recent");
  EXPECT_TRUE(any(newest.mapped, "train.fp8.history: 1"));
  EXPECT_TRUE(any(newest.ignored, "most_recent reads the last step"));
  const Conversion tensor = converted(wide + longer + "--fp8-recipe tensorwise");
  EXPECT_TRUE(any(tensor.ignored, "of the values that it is for"));
  EXPECT_FALSE(any(tensor.mapped, "train.fp8.history"));
  EXPECT_TRUE(
      any(converted(wide + "--fp8-recipe delayed --fp8-margin 2").ignored, "the smallest scale"));
}

TEST(MegatronFlags, EightBitsOfADenseModelAreThoseOfItsProducts) {
  const auto dense = [](const std::string& more) {
    return convert_recipe(
        "--num-layers 2 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 "
        "--swiglu --bf16 --fp8-format hybrid " +
            more,
        "run.sh", ForeignKind::kMegatron);
  };
  const std::string wide = "--hidden-size 128 --ffn-hidden-size 256 ";
  const Conversion both = dense(wide + "--disable-bias-linear --fp8-recipe tensorwise");
  EXPECT_EQ(both.refused, std::vector<std::string>());
  EXPECT_EQ(both.deferred, std::vector<std::string>());
  EXPECT_TRUE(any(both.mapped, "train.fp8.attention: true"));
  EXPECT_TRUE(any(both.mapped, "train.fp8.ffn: true"));
  EXPECT_TRUE(any(both.mapped, "train.fp8.recipe: tensor"));
  const auto notes_of = [&](const std::string& recipe) {
    return dense(wide + "--disable-bias-linear " + recipe).notes;
  };
  EXPECT_TRUE(any(notes_of(""), "--fp8-recipe delayed (its default): one scale a tensor there"));
  EXPECT_TRUE(any(notes_of("--fp8-recipe delayed"), "train.fp8 makes their scales of their own"));
  EXPECT_TRUE(any(notes_of("--fp8-recipe mxfp8"), "train.fp8.recipe row is the nearest"));
  const Conversion biased = dense(wide);
  EXPECT_TRUE(any(biased.mapped, "train.fp8.attention: true"));
  EXPECT_TRUE(any(biased.notes, "in bf16 stay those of train.fp8.ffn: dense feed-forwards with"));
  const Conversion cut = dense(wide + "--disable-bias-linear --tensor-model-parallel-size 2");
  EXPECT_TRUE(any(cut.mapped, "train.fp8.ffn: true"));
  EXPECT_FALSE(any(cut.mapped, "train.fp8.attention: true"));
  const Conversion narrow = dense("--hidden-size 64 --disable-bias-linear --fp8-recipe delayed");
  EXPECT_EQ(narrow.refused, std::vector<std::string>());
  EXPECT_TRUE(any(narrow.deferred, "--fp8-format hybrid: products are bf16's here"));
  EXPECT_TRUE(any(narrow.ignored, "no product has 8-bit operands here"));
  EXPECT_FALSE(any(narrow.mapped, "train.fp8"));
}

TEST(MegatronFlags, PaisOlderScriptsNameSizesAndRotationsOtherwise) {
  std::string model = kModel;
  const std::string rope = "--position-embedding-type rope ";
  model.erase(model.find(rope), rope.size());
  const Conversion out =
      convert_recipe(model +
                         "--use-llama2-rotary-position-embeddings --rotary-scale-factor 1 "
                         "--intermediate-size 192 --moe-layer-freq [0]*1+[1]*3",
                     "run.sh", ForeignKind::kMegatron);
  EXPECT_EQ(out.refused, std::vector<std::string>());
  EXPECT_TRUE(any(out.mapped, "--use-llama2-rotary-position-embeddings -> model.positions: rope"));
  EXPECT_TRUE(any(out.mapped, "--intermediate-size 192 -> model.ffn: 192"));
  EXPECT_TRUE(any(converted("--rotary-scale-factor 4").refused, "1 is supported"));
}

TEST(MegatronFlags, AFixedLossScaleNeverMoves) {
  std::string model = kModel;
  model.replace(model.find("--bf16"), 6, "--fp16");
  Recipe r;
  read_config(
      parse_yaml(
          convert_recipe(model + "--loss-scale 4096", "run.sh", ForeignKind::kMegatron).recipe,
          "recipe"),
      r);
  EXPECT_EQ(r.train.loss_scale.initial, 4096);
  EXPECT_EQ(r.train.loss_scale.least, 4096);
  EXPECT_TRUE(any(converted("--loss-scale 4096").ignored, "without fp16"));
}

TEST(MegatronFlags, MuonIsOursWhereItsFormIs) {
  const std::string same = "--optimizer muon --muon-extra-scale-factor 0.2 ";
  const Recipe r = recipe_of(same + "--muon-nesterov --muon-momentum 0.95");
  EXPECT_EQ(std::get<MuonConfig>(r.train.optimizer).momentum, 0.95);
  EXPECT_TRUE(any(converted(same).refused, "plain momentum is not supported"));
  EXPECT_TRUE(any(converted("--optimizer muon --muon-nesterov").refused, "0.2 has the size"));
}

TEST(MegatronFlags, DataThatAreNotTokenFilesAreToBeFilledIn) {
  std::string model = kModel;
  const std::string mock = "--mock-data ";
  model.erase(model.find(mock), mock.size());
  for (const char* more : {"--sft", "--train-mode finetune", "--dataset LLama-SFT",
                           "--dataset LLama-Pretrain-Raw", "--dataloader-type external"}) {
    const Conversion out =
        convert_recipe(model + "--data-path corpus " + more, "run.sh", ForeignKind::kMegatron);
    EXPECT_EQ(out.refused, std::vector<std::string>()) << more;
    ASSERT_EQ(out.missing.size(), 1U) << more;
    EXPECT_NE(out.missing[0].find("data.train: --"), std::string::npos) << out.missing[0];
  }
  const Conversion files =
      convert_recipe(model + "--data-path corpus --dataset LLama-Pretrain-Idxmap", "run.sh",
                     ForeignKind::kMegatron);
  EXPECT_TRUE(any(files.mapped, "--data-path corpus -> data.train"));
  EXPECT_EQ(recipe_of("--dataloader-type cyclic").data.order, DataOrder::kOurs);
  EXPECT_TRUE(any(converted("--dataloader-type single").ignored, "its default"));
  EXPECT_TRUE(any(converted("--dataloader-type batch").refused, "single, cyclic and external"));
}

constexpr const char* kDeepspeed =
    "deepspeed pretrain_gpt.py --deepspeed --num-layers 4 --hidden-size 64 --num-attention-heads 4 "
    "--seq-length 32 --max-position-embeddings 32 --micro-batch-size 1 --global-batch-size 4 "
    "--train-iters 10 --lr 1e-3 --fp16 --mock-data --vocab-size 128 --save run "
    "--moe-expert-parallel-size 4 --moe-loss-coeff 0.01 --moe-train-capacity-factor 1.25 ";

TEST(MegatronFlags, DeepSpeedsGateIsOneOfOneExpertAToken) {
  const std::string eval = "--moe-eval-capacity-factor 1.25 ";
  const Conversion out =
      convert_recipe(kDeepspeed + eval + "--num-experts 8", "run.sh", ForeignKind::kMegatron);
  EXPECT_EQ(out.refused, std::vector<std::string>());
  EXPECT_EQ(out.faults, std::vector<std::string>());
  Recipe r;
  read_config(parse_yaml(out.recipe, "recipe"), r);
  const auto& moe = r.model.moe;
  EXPECT_EQ(moe.layers, "[0,1,0,1]");
  EXPECT_EQ(moe.top_k, 1);
  EXPECT_EQ(moe.capacity.factor, 1.25);
  EXPECT_EQ(moe.capacity.min, 4);
  EXPECT_TRUE(moe.capacity.in_evaluation);
  EXPECT_TRUE(any(out.mapped, "--moe-loss-coeff 0.01 -> model.moe.router.balance.aux_loss: 0.01"));
  EXPECT_TRUE(any(out.notes, "drawn by chance there"));
  EXPECT_TRUE(any(out.ignored, "--moe-expert-parallel-size 4"));

  const auto refused = [&](const std::string& more) {
    return convert_recipe(kDeepspeed + more, "run.sh", ForeignKind::kMegatron).refused;
  };
  EXPECT_TRUE(any(refused("--num-experts 8"), "--moe-eval-capacity-factor 1.0, its default"));
  EXPECT_TRUE(any(refused(eval + "--num-experts 8 --topk 2"), "one expert a token"));
  EXPECT_TRUE(any(refused(eval + "--num-experts 4 8 --mlp-type residual"), "dense layer beside"));
  EXPECT_TRUE(any(refused(eval + "--num-experts 4 8"), "one count for all layers"));

  const Conversion dense =
      convert_recipe(kDeepspeed + eval + "--num-experts 1", "run.sh", ForeignKind::kMegatron);
  EXPECT_EQ(dense.refused, std::vector<std::string>());
  EXPECT_TRUE(any(dense.ignored, "--num-experts 1: one expert is a dense layer"));
}

TEST(MegatronFlags, WhatIsComputedAgainIsAListOrAnEarlierFlag) {
  const std::string some = "--recompute-granularity selective --recompute-modules ";
  EXPECT_EQ(recipe_of(some + "[moe_act,mlp]").model.moe.ffn.recompute, Recompute::kAct);
  EXPECT_EQ(recipe_of("--activations-checkpoint-method uniform").train.recompute, "1");
}

TEST(MegatronFlags, LayersAreOffloadedWhereItIsSwitchedOn) {
  EXPECT_EQ(recipe_of("--cpu-offloading --cpu-offloading-num-layers 3").train.offload_layers, 3);
  EXPECT_EQ(recipe_of("--cpu-offloading-num-layers 3").train.offload_layers, 0);
  EXPECT_TRUE(any(converted("--cpu-offloading-num-layers 3").ignored, "without --cpu-offloading"));
  EXPECT_EQ(recipe_of("--cpu-offloading").train.offload_layers, 0);
  EXPECT_TRUE(any(converted("--cpu-offloading").ignored, "of no layers"));
}

TEST(MegatronFlags, DeepSpeedsSequenceRanksExchangeHeads) {
  const Recipe r = recipe_of("--ds-sequence-parallel-size 2 --force-ds-sequence-parallel");
  EXPECT_EQ(r.parallel.context, 2);
  EXPECT_EQ(r.parallel.context_method, ContextMethod::kHeads);
}

TEST(MegatronFlags, AModelOfAnotherKindIsRefusedOnce) {
  const Conversion state =
      converted("--hybrid-layer-pattern M-M* --mamba-state-dim 128 --mamba-num-heads 8");
  ASSERT_EQ(state.refused.size(), 1U);
  EXPECT_TRUE(any(state.refused, "state space layers (Mamba)"));
  EXPECT_TRUE(any(state.refused, "as 2 more of its flags say"));
  EXPECT_TRUE(any(converted("--linear-attention-freq 4").refused, "linear or sparse attention"));
  EXPECT_TRUE(any(converted("--patch-size 16").refused, "sees images"));
  const Conversion bert =
      convert_recipe("python pretrain_bert.py --bf16", "run.sh", ForeignKind::kMegatron);
  EXPECT_TRUE(any(bert.refused, "pretrain_bert.py: is of a model with an encoder"));
}

}  // namespace
}  // namespace troupe
