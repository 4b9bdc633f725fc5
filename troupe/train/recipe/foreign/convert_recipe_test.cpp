#include "troupe/train/recipe/foreign/convert_recipe.h"

#include <gtest/gtest.h>

#include "troupe/train/recipe/foreign/convert_test.h"
#include "troupe/train/recipe/foreign/flag_rules.h"

namespace troupe {
namespace {

// The script for Mixtral 8x7B that Megatron-LM's documentation shows, by its settings.
constexpr char kMixtral[] = R"(#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"1"}
CHECKPOINT_PATH=$1
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
)
MODEL_ARGS=(
    --use-mcore-models
    --disable-bias-linear
    --seq-length 4096
    --max-position-embeddings 32768
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 14336
    --num-attention-heads 32
    --init-method-std 0.01
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --normalization RMSNorm
    --position-embedding-type rope
    --swiglu
    --untie-embeddings-and-output-weights
    --group-query-attention
    --num-query-groups 8
    --no-masked-softmax-fusion
    --rotary-base 1000000
)
MOE_ARGS=(
    --num-experts 8
    --moe-router-topk 2
    --moe-router-load-balancing-type aux_loss
    --moe-aux-loss-coeff 1e-2
    --moe-grouped-gemm
    --moe-token-dispatcher-type alltoall
    --overlap-param-gather   # a comment
)
DATA_ARGS=(
    --tokenizer-type Llama2Tokenizer
    --tokenizer-model tokenizer.model
    --data-path corpus/text_document
    --split 99990,8,2
    --vocab-size 32000
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 256
    --lr 1e-4
    --train-iters 500000
    --lr-decay-iters 320000
    --lr-decay-style cosine
    --min-lr 1.0e-5
    --weight-decay 0.1
    --lr-warmup-iters 500
    --clip-grad 1.0
    --bf16
)
if [ -n "${WANDB_API_KEY}" ]; then
    LOGGING_ARGS+=(--wandb-project ${WANDB_PROJECT:-"Mixtral"})
fi
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${MODEL_ARGS[@]} \
    ${MOE_ARGS[@]} "${DATA_ARGS[@]}" \
    ${TRAINING_ARGS[@]} ${LOGGING_ARGS[@]} \
    --save runs/mixtral --load runs/mixtral --no-load-rng \
    --tensor-model-parallel-size 1 --save-interval 10000 --eval-interval 1000 --eval-iters 10 \
    --log-interval 1
)";

constexpr char kMixtralRecipe[] = R"(model:
  max_positions: 32768
  layers: 32
  width: 4096
  heads: 32
  rope:
    theta: 1000000
  vocab: 32000
  moe:
    hidden: 14336
    activation: silu
    gated: true
    bias: false
    experts: 8
    top_k: 2
    router:
      kind: topk_softmax
      order: after
      balance:
        aux_loss: 1e-2
  norm:
    kind: rms
  tie_embeddings: false
  vocab_pad: 128
  init_std: 0.01
  dropout: 0.0
  attn_dropout: 0.0
  bias: false
  act: swiglu
  kv_heads: 8
  positions: rope
data:
  sequence: 4096
  train: [{path: corpus/text_document}]
  split: "99990,8,2"
  order: megatron
  tokenizer: tokenizer.model
train:
  micro_batch: 1
  global_batch: 256
  steps: 500000
  schedule:
    kind: cosine
    megatron: true
    warmup: 500
    end: 320000
    min: 0.1
  optimizer:
    kind: adamw
    lr: 1e-4
    weight_decay: 0.1
    betas: [0.9, 0.999]
    eps: 1e-8
  clip: 1.0
  precision: bf16
  seed: 1234
eval:
  every: 1000
  batches: 2560
  batch: 1
parallel:
  tensor: 1
checkpoint:
  every_steps: 10000
  dir: runs/mixtral
  resume: auto
log:
  every: 1
)";

TEST(ConvertRecipe, AMegatronScriptBecomesARecipeThatChecks) {
  const Conversion out = megatron(kMixtral);
  EXPECT_EQ(out.refused, std::vector<std::string>());
  EXPECT_EQ(out.missing, std::vector<std::string>());
  EXPECT_EQ(plain(out.recipe), kMixtralRecipe);
  const Recipe recipe = read_back(out);
  EXPECT_NO_THROW(validate(recipe, {}));
  EXPECT_TRUE(any(out.ignored, "--moe-token-dispatcher-type alltoall: speed only"));
  EXPECT_FALSE(any(out.mapped, "--wandb-project"));
  EXPECT_TRUE(any(out.mapped, "--num-layers 32 -> model.layers: 32"));
  EXPECT_TRUE(any(out.notes, "not given: $WANDB_API_KEY (--variable WANDB_API_KEY=VALUE)"));
  EXPECT_NE(out.recipe.find("layers: 32  # --num-layers 32\n"), std::string::npos);
}

TEST(ConvertRecipe, WeightsAndBiasesGetTheRunByACommandBesideIt) {
  const Conversion out =
      convert_recipe(kMixtral, "run.sh", ForeignKind::kMegatron, {{"WANDB_API_KEY", "k"}});
  const std::string command = "tools/follow_log.py runs/mixtral --to wandb --project Mixtral";
  EXPECT_TRUE(any(out.mapped, "--wandb-project Mixtral -> a command beside the run: " + command));
  EXPECT_TRUE(out.recipe.starts_with("# beside the run: " + command + '\n')) << out.recipe;
  EXPECT_FALSE(any(out.notes, "WANDB_API_KEY"));
}

TEST(ConvertRecipe, WhatAMegatronScriptLeavesOutHasMegatronsDefaults) {
  const Conversion out = megatron(arguments(""));
  EXPECT_EQ(out.refused, std::vector<std::string>());
  EXPECT_EQ(out.missing, std::vector<std::string>());
  const Recipe r = read_back(out);
  EXPECT_EQ(r.model.moe.experts, 0);
  EXPECT_EQ(r.model.ffn, 384);
  EXPECT_EQ(r.model.norm.kind, NormForm::kLayer);
  EXPECT_TRUE(r.model.norm.bias && r.model.bias && r.model.tie_embeddings);
  EXPECT_EQ(r.model.positions, PositionForm::kLearned);
  EXPECT_EQ(r.model.dropout, 0.1);
  EXPECT_EQ(r.model.attn_dropout, 0.1);
  EXPECT_EQ(r.model.act, FfnAct::kGeluTanh);
  EXPECT_EQ(r.model.vocab_pad, 128);
  EXPECT_EQ(r.train.seed, 1234U);
  EXPECT_EQ(r.train.schedule.kind(), "linear");
  EXPECT_EQ(std::get<AdamWConfig>(r.train.optimizer).betas[1], 0.999);
  EXPECT_EQ(std::get<AdamWConfig>(r.train.optimizer).weight_decay, 0.01);
  EXPECT_EQ(r.eval.batches, 200);  // 100 global batches of 2 micro batches each
  EXPECT_EQ(r.data.order, DataOrder::kMegatron);
  EXPECT_EQ(read_back(megatron(arguments("--swiglu"))).model.ffn, 256);  // 8/3 h, by 64 down
}

TEST(ConvertRecipe, MegatronsStagesAreOurs) {
  const auto stages = [](const std::string& more) {
    const Conversion out =
        megatron(arguments("--num-layers 12 --pipeline-model-parallel-size 4 " + more));
    EXPECT_EQ(out.refused, std::vector<std::string>()) << more;
    EXPECT_EQ(out.deferred, std::vector<std::string>()) << more;
    const Recipe r = read_back(out);
    EXPECT_EQ(r.parallel.pipeline, 4) << more;
    EXPECT_NO_THROW(validate(r, {})) << more;
    return std::pair(r.parallel.stages, r.parallel.virtual_stages);
  };
  using Pair = std::pair<std::string, int64_t>;
  EXPECT_EQ(stages(""), Pair("", 0));
  EXPECT_EQ(stages("--num-layers-per-virtual-pipeline-stage 1"), Pair("", 3));
  EXPECT_EQ(stages("--num-virtual-stages-per-pipeline-rank 2"), Pair("", 2));
  EXPECT_EQ(stages("--pipeline-model-parallel-layout \"[['embedding','decoder','decoder'],"
                   "['decoder','decoder','decoder','decoder'],['decoder','decoder','decoder',"
                   "'decoder'],['decoder','decoder','loss']]\""),
            Pair("Ett|tttt|tttt|ttL", 0));
  EXPECT_EQ(stages("--mtp-num-layers 1 --pipeline-model-parallel-layout 'Et*4|t*8|m|L'"),
            Pair("Et*4|t*8|m|L", 0));
  EXPECT_EQ(stages("--decoder-first-pipeline-num-layers 2 --decoder-last-pipeline-num-layers 2"),
            Pair("Et*2|(t*4|)*2,t*2L", 0));
  EXPECT_EQ(stages("--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split "
                   "--num-layers 14"),
            Pair("Et*3|(t*4|)*2,t*3L", 0));
  const Conversion uneven = megatron(arguments(
      "--num-layers 12 --pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 2"));
  EXPECT_TRUE(any(uneven.ignored, "speed only: the stages are chosen by cost"));
  EXPECT_EQ(megatron(arguments("--num-layers 12 --pipeline-model-parallel-size 4 "
                               "--num-layers-per-virtual-pipeline-stage 2"))
                .refused.size(),
            1U);
}

TEST(ConvertRecipe, MegatronsTensorRanksAreOursAndSlicesOfExpertsToo) {
  const Conversion out = megatron(arguments(
      "--tensor-model-parallel-size 4 --sequence-parallel --expert-tensor-parallel-size 2 "
      "--num-layers-per-virtual-pipeline-stage 2 --tp-comm-overlap --moe-extended-tp"));
  EXPECT_EQ(out.refused, std::vector<std::string>());
  EXPECT_EQ(out.missing, std::vector<std::string>());
  EXPECT_EQ(out.deferred, std::vector<std::string>());
  EXPECT_TRUE(any(out.ignored, "--sequence-parallel: always so here"));
  EXPECT_TRUE(any(out.ignored, "--tp-comm-overlap: speed only: in backward tokens'"));
  EXPECT_TRUE(any(out.ignored, "--moe-extended-tp: no effect on results: parallel.expert_t"));
  EXPECT_TRUE(any(out.ignored, "--num-layers-per-virtual-pipeline-stage 2: one pipeline rank"));
  const Recipe r = read_back(out);
  EXPECT_EQ(r.parallel.tensor, 4);
  EXPECT_EQ(r.parallel.expert_tensor, 2);
  EXPECT_EQ(r.model.vocab_pad, 512);  // as many rows as there
  EXPECT_NO_THROW(validate(r, {}));
  const Conversion one =
      megatron(arguments("--tensor-model-parallel-size 1 --sequence-parallel "
                         "--expert-tensor-parallel-size 1"));
  EXPECT_EQ(read_back(one).parallel.expert_tensor, 1);
  // Left out it equals the tensor ranks, and a note says so; a dense model has none.
  const Conversion silent =
      megatron(arguments("--tensor-model-parallel-size 4 --num-experts 8 --moe-router-topk 2"));
  EXPECT_EQ(read_back(silent).parallel.expert_tensor, 4);
  EXPECT_TRUE(any(silent.notes, "--expert-tensor-parallel-size is not given, which means 4 there"));
  EXPECT_TRUE(any(silent.notes, "--sequence-parallel is not given: it is always so here"));
  const Conversion dense = megatron(arguments("--tensor-model-parallel-size 4"));
  EXPECT_EQ(read_back(dense).parallel.expert_tensor, 0);
  const Conversion context =
      megatron(arguments("--context-parallel-size 2 --tp-comm-overlap --cp-comm-type p2p "
                         "--overlap-moe-expert-parallel-comm --high-priority-stream-groups ep"));
  EXPECT_EQ(read_back(context).parallel.context, 2);
  EXPECT_TRUE(any(context.ignored, "--tp-comm-overlap: one tensor rank"));
  EXPECT_TRUE(any(context.ignored, "--cp-comm-type p2p: speed only"));
  EXPECT_TRUE(any(context.mapped, "parallel-comm -> parallel.overlap: experts"));
  EXPECT_TRUE(any(context.mapped, "-groups ep -> parallel.comm_priority: high"));
  const Conversion heads = megatron(arguments("--context-parallel-size 2 --cp-comm-type a2a"));
  EXPECT_EQ(read_back(heads).parallel.context_method, ContextMethod::kHeads);
}

TEST(ConvertRecipe, PositionsThatAreTurnedOffAreNone) {
  const auto positions = [](const std::string& more) {
    return read_back(megatron(arguments(more + " --no-position-embedding"))).model.positions;
  };
  EXPECT_EQ(positions("--position-embedding-type rope"), PositionForm::kRope);
  EXPECT_EQ(positions("--use-rotary-position-embeddings"), PositionForm::kRope);
  EXPECT_EQ(positions(""), PositionForm::kNone);
  EXPECT_EQ(positions("--position-embedding-type learned_absolute"), PositionForm::kNone);
}

TEST(ConvertRecipe, WhatIsComputedAgainIsMegatrons) {
  const auto recompute = [](const std::string& more) {
    return read_back(megatron(arguments(more))).train.recompute;
  };
  const std::string full = "--recompute-granularity full ";
  EXPECT_EQ(recompute(full), "1");
  EXPECT_EQ(recompute(full + "--recompute-method uniform --recompute-num-layers 2"), "1");
  EXPECT_EQ(recompute(full + "--recompute-method block --recompute-num-layers 3"), "[1]*3+[0]*1");
  EXPECT_EQ(recompute(full + "--recompute-method block --recompute-num-layers 4"), "1");
  const std::string some = "--num-experts 8 --recompute-granularity selective --recompute-modules ";
  EXPECT_EQ(read_back(megatron(arguments(some + "moe_act moe"))).model.moe.ffn.recompute,
            Recompute::kLayer);
  // Each flag and each module is in one of the lists.
  const Conversion out = megatron(arguments(some + "core_attn moe_act layernorm moe scores"));
  EXPECT_TRUE(any(out.mapped, "--recompute-modules moe -> model.moe.recompute: layer"));
  EXPECT_TRUE(any(out.ignored, "--recompute-modules moe_act: the module moe has it"));
  EXPECT_TRUE(any(out.ignored, "--recompute-modules layernorm: memory only"));
  EXPECT_TRUE(any(out.ignored, "--recompute-modules core_attn: attention never keeps"));
  EXPECT_TRUE(any(out.ignored, "--recompute-granularity selective"));
  EXPECT_TRUE(any(out.refused, "--recompute-modules scores"));
  const Conversion uniform =
      megatron(arguments(full + "--recompute-method uniform --recompute-num-layers 2"));
  EXPECT_TRUE(any(uniform.ignored, "--recompute-method uniform: memory only"));
  EXPECT_TRUE(any(uniform.ignored, "--recompute-num-layers 2: memory only"));
  EXPECT_TRUE(any(megatron(arguments("--recompute-method block")).ignored, "has no effect there"));
  EXPECT_TRUE(any(megatron(arguments("--recompute-granularity some")).refused, "full and selec"));
}

TEST(ConvertRecipe, WeightsWithoutTheOptimizerAreWhatARunBeginsFrom) {
  const auto checkpoint = [](const std::string& more) {
    return read_back(megatron(arguments(more))).checkpoint;
  };
  EXPECT_EQ(checkpoint("--load other --no-load-optim").init_from, "other");
  EXPECT_EQ(checkpoint("--load run --no-load-optim").init_from, "");
  EXPECT_EQ(checkpoint("--load run --no-load-optim").resume.kind, Resume::kAuto);
  EXPECT_TRUE(any(megatron(arguments("--load run --no-load-optim")).ignored, "takes them along"));
  EXPECT_TRUE(any(megatron(arguments("--load other")).refused, "another folder than --save"));
}

TEST(ConvertRecipe, ProfiledStepsAreCountedFromOne) {
  const Recipe r = read_back(megatron(arguments("--profile --profile-step-start 4")));
  EXPECT_EQ(r.profile.from, 5);
  EXPECT_EQ(r.profile.steps, 8);
  EXPECT_TRUE(any(megatron(arguments("--profile-step-end 9")).ignored, "without --profile"));
}

TEST(ConvertRecipe, D1_MaskedTargetsAreCountedAsMegatronCountsThem) {
  const auto mean = [](const std::string& more) {
    return read_back(megatron(arguments(more))).train.loss_mean;
  };
  EXPECT_EQ(mean(""), LossMean::kTokens);
  EXPECT_EQ(mean("--eod-mask-loss"), LossMean::kMicrobatches);
  EXPECT_EQ(mean("--eod-mask-loss --calculate-per-token-loss"), LossMean::kTokens);
}

TEST(ConvertRecipe, WhatRanksShareIsMegatrons) {
  const auto shard = [](const std::string& more) {
    return read_back(megatron(arguments(more))).parallel.shard;
  };
  EXPECT_EQ(shard(""), ShardKind::kAuto);
  EXPECT_EQ(shard("--use-distributed-optimizer"), ShardKind::kZero1);
  EXPECT_EQ(shard("--use-torch-fsdp2"), ShardKind::kFull);
  const std::string fsdp = "--use-megatron-fsdp --use-distributed-optimizer ";
  EXPECT_EQ(shard(fsdp + "--data-parallel-sharding-strategy optim_grads_params"), ShardKind::kFull);
  EXPECT_EQ(shard(fsdp + "--data-parallel-sharding-strategy optim_grads"), ShardKind::kZero1);
  EXPECT_EQ(shard("--data-parallel-sharding-strategy no_shard"), ShardKind::kNone);
  EXPECT_TRUE(any(megatron(arguments("--data-parallel-sharding-strategy some")).refused,
                  "no_shard, optim"));
}

TEST(ConvertRecipe, MegatronsRoutersKeepTheirMeaning) {
  const auto router = [](const std::string& more) {
    return read_back(megatron(arguments("--num-experts 8 " + more))).model.moe.router;
  };
  const auto plain_one = std::get<TopkSoftmaxRouting>(router(""));
  EXPECT_EQ(plain_one.order, SoftmaxOrder::kAfter);
  EXPECT_EQ(plain_one.balance.aux_loss, 0);
  EXPECT_TRUE(any(megatron(arguments("--num-experts 8")).notes, "nothing balances the experts"));
  EXPECT_EQ(std::get<TopkSoftmaxRouting>(router("--moe-router-pre-softmax")).order,
            SoftmaxOrder::kBefore);
  const auto deepseek = std::get<SigmoidBiasRouting>(
      router("--moe-router-score-function sigmoid --moe-router-enable-expert-bias "
             "--moe-router-num-groups 4 --moe-router-group-topk 2 "
             "--moe-router-topk-scaling-factor 2.5 --moe-router-load-balancing-type seq_aux_loss "
             "--moe-aux-loss-coeff 1e-4 --moe-z-loss-coeff 1e-3"));
  EXPECT_EQ(deepseek.bias_rate, 1e-3);
  EXPECT_EQ(deepseek.limit.groups, 4);
  EXPECT_EQ(deepseek.limit.keep, 2);
  EXPECT_EQ(deepseek.scale, 2.5);
  EXPECT_EQ(deepseek.balance.seq_loss, 1e-4);
  EXPECT_EQ(deepseek.balance.z_loss, 1e-3);
  EXPECT_EQ(std::get<SigmoidBiasRouting>(router("--moe-router-score-function sigmoid")).bias_rate,
            0);
  EXPECT_EQ(router("--moe-router-load-balancing-type sinkhorn").kind(), "sinkhorn");
  EXPECT_EQ(std::get<TopkSoftmaxRouting>(router("--moe-router-load-balancing-type None"))
                .balance.balances(),
            false);
  EXPECT_TRUE(any(megatron(arguments("--num-experts 8 --moe-router-topk 1")).refused,
                  "needs --moe-router-pre-softmax"));
  EXPECT_TRUE(any(megatron(arguments("--num-experts 8 --moe-router-enable-expert-bias")).refused,
                  "needs --moe-router-score-function sigmoid"));
}

TEST(ConvertRecipe, MegatronsCapacityLayersAndSharedExpertAreMapped) {
  const Recipe r = read_back(megatron(
      arguments("--num-experts 8 --moe-ffn-hidden-size 48 --moe-layer-freq '([0]*1+[1]*3)' "
                "--moe-expert-capacity-factor 1.25 --moe-pad-expert-input-to-capacity "
                "--moe-token-drop-policy position --moe-shared-expert-intermediate-size 80 "
                "--moe-shared-expert-gate --moe-input-jitter-eps 0.01")));
  EXPECT_EQ(r.model.moe.ffn.hidden, 48);
  EXPECT_EQ(r.model.moe.layers, "[0]*1+[1]*3");
  EXPECT_EQ(r.model.ffn, 384);
  EXPECT_EQ(r.model.moe.capacity.factor, 1.25);
  EXPECT_TRUE(r.model.moe.capacity.pad);
  EXPECT_EQ(r.model.moe.capacity.policy, DropPolicy::kPosition);
  EXPECT_EQ(r.model.moe.shared.hidden, 80);
  EXPECT_EQ(r.model.moe.shared.form, SharedForm::kGate);
  EXPECT_EQ(std::get<TopkSoftmaxRouting>(r.model.moe.router).gate.jitter, 0.01);
}

TEST(ConvertRecipe, MegatronsDeadDroppingFlagDropsAndSaysSo) {
  const Conversion out = megatron(arguments("--num-experts 8 --moe-token-dropping"));
  EXPECT_EQ(read_back(out).model.moe.capacity.factor, 1);
  EXPECT_TRUE(any(out.notes, "reads the flag nowhere"));
  const Conversion both =
      megatron(arguments("--num-experts 8 --moe-token-dropping --moe-expert-capacity-factor 2"));
  EXPECT_EQ(read_back(both).model.moe.capacity.factor, 2);
  EXPECT_TRUE(any(both.ignored, "--moe-token-dropping: the factor says it"));
}

TEST(ConvertRecipe, MegatronsSchedulesKeepTheirUnits) {
  const Recipe r = read_back(megatron(
      "--num-layers 2 --hidden-size 96 --num-attention-heads 4 --seq-length 64 --vocab-size 512 "
      "--micro-batch-size 2 --global-batch-size 4 --train-samples 1000 --lr 1e-3 --min-lr 1e-4 "
      "--lr-decay-style WSD --lr-decay-samples 800 --lr-wsd-decay-samples 100 "
      "--lr-warmup-fraction 0.05 --lr-wsd-decay-style minus_sqrt --rampup-batch-size 2 2 100 "
      "--data-path 0.3 a 0.7 b --save run --weight-decay-incr-style cosine "
      "--start-weight-decay 0 --end-weight-decay 0.2"));
  EXPECT_EQ(r.train.tokens.value, 64000);
  const auto& wsd = std::get<WsdLr>(r.train.schedule);
  EXPECT_EQ(wsd.end, (Span{800, Span::Unit::kSamples}));
  EXPECT_EQ(wsd.decay, (Span{100, Span::Unit::kSamples}));
  EXPECT_EQ(wsd.warmup, (Span{40, Span::Unit::kSamples}));
  EXPECT_EQ(wsd.tail, Tail::kSqrt);
  EXPECT_DOUBLE_EQ(wsd.min, 0.1);
  EXPECT_TRUE(wsd.megatron);
  EXPECT_EQ(r.train.batch_ramp->samples, 100);
  EXPECT_EQ(share_of(r.data.train[1]).weight, 0.7);
  EXPECT_EQ(r.data.split, "969,30,1");
  EXPECT_EQ(base_of(r.train.optimizer).weight_decay_end, 0.2);
}

TEST(ConvertRecipe, UnknownFlagsAndBadValuesAreRefusedWithTheirPlace) {
  const Conversion out = megatron(
      arguments("--num-exprts 8 \\\n --moe-router-topk two --fp4-format e2m1 --clip-grad x "
                "--vocab-extra-ids 8 --loss-scale-window 1.5"));
  EXPECT_TRUE(any(out.refused,
                  "run.sh:1: E2003 --num-exprts 8: not a flag that is known here; did "
                  "you mean --num-experts?"))
      << out.refused[0];
  EXPECT_TRUE(any(out.refused, "run.sh:2: E2005 --clip-grad x: train.clip must be a number"));
  EXPECT_TRUE(any(out.refused, "--fp4-format e2m1: 4-bit training is not supported"));
  EXPECT_TRUE(any(out.refused, "--vocab-extra-ids 8: add them"));
  EXPECT_TRUE(any(out.refused, "train.loss_scale.window must be an integer"));
}

TEST(ConvertRecipe, WhatIsGivenFromOutsideIsToBeFilledIn) {
  const Conversion out = megatron(
      "python pretrain_gpt.py --num-layers 2 --hidden-size 64 "
      "--num-attention-heads 4 --data-path $DATA --save $1");
  EXPECT_EQ(out.refused, std::vector<std::string>());
  for (const char* path : {"data.train", "checkpoint.dir", "model.vocab", "train.global_batch",
                           "train.optimizer.lr", "train.steps"}) {
    EXPECT_TRUE(any(out.missing, path)) << path;
  }
}

TEST(ConvertRecipe, TheTableNamesEachFlagOnceAndEachFieldExists) {
  const auto rules = flag_rules();
  for (size_t i = 0; i < rules.size(); ++i) {
    EXPECT_EQ(find_flag(rules[i].name), &rules[i]) << rules[i].name << " is there twice";
    if (rules[i].what != FlagRule::kField && rules[i].what != FlagRule::kSwitch) continue;
    // A field that no recipe has would be refused for its name, whatever the value.
    std::string text = "--";
    text.append(rules[i].name).append(rules[i].value.empty() ? " 1" : "");
    const Conversion out = megatron(text);
    EXPECT_FALSE(any(out.refused, "E2003")) << rules[i].name << ": " << rules[i].text;
    EXPECT_FALSE(any(out.refused, "E2004")) << rules[i].name << ": " << rules[i].text;
  }
}

constexpr char kFoundry[] = R"(variables:
  max_seq_len: 512
  lr: 6.0e-4
max_seq_len: ${variables.max_seq_len}
run_name: dmoe
model:
  name: mpt_causal_lm
  d_model: 256
  n_heads: 8
  n_layers: 4
  max_seq_len: ${max_seq_len}
  vocab_size: 50368
  no_bias: true
  norm_type: rmsnorm
  learned_pos_emb: false
  attn_config: {attn_impl: flash, rope: true, rope_theta: 500000, kv_n_heads: 4, clip_qkv: 8}
  ffn_config:
    ffn_type: mb_dmoe
    ffn_hidden_size: 448
    moe_num_experts: 16
    moe_top_k: 4
    moe_world_size: 1
    moe_loss_weight: 0.05
    moe_jitter_eps: 0.01
    moe_normalize_expert_weights: 1
    mlp_type: glu
    ffn_act_fn: {name: silu}
  init_config: {name: baseline_, init_std: 0.02}
tokenizer: {name: EleutherAI/gpt-neox-20b, kwargs: {model_max_length: 512}}
train_loader:
  name: text
  dataset: {local: data/c4, split: train, shuffle: true, shuffle_seed: 17, max_seq_len: 512}
  drop_last: true
  num_workers: 8
eval_loader: {name: text, dataset: {local: data/c4, split: val}}
scheduler: {name: cosine_with_warmup, t_warmup: 100ba, alpha_f: 0.1}
optimizer: {name: decoupled_adamw, lr: 6.0e-4, betas: [0.9, 0.95], eps: 1.0e-08, weight_decay: 6.0e-5}
algorithms: {gradient_clipping: {clipping_type: norm, clipping_threshold: 1.0}}
max_duration: 4800ba
eval_interval: 500ba
eval_first: false
eval_subset_num_batches: -1
global_train_batch_size: 256
seed: 17
device_eval_batch_size: 16
device_train_microbatch_size: auto
precision: amp_bf16
fsdp_config: {sharding_strategy: FULL_SHARD, mixed_precision: PURE, activation_checkpointing: true}
progress_bar: false
log_to_console: true
console_log_interval: 1ba
callbacks: {speed_monitor: {window_size: 10}, lr_monitor: {}}
save_interval: 1000ba
save_num_checkpoints_to_keep: -1
save_folder: runs/{run_name}
)";

constexpr char kFoundryRecipe[] = R"(model:
  width: 256
  heads: 8
  layers: 4
  vocab: 50368
  max_positions: 512
  bias: false
  norm:
    kind: rms
    eps: 1e-5
  tie_embeddings: true
  dropout: 0
  attn_dropout: 0
  positions: rope
  clip_qkv: 8
  init_std: 0.02
  moe:
    experts: 16
    top_k: 4
    hidden: 448
    activation: silu
    gated: true
    output_bias: false
    router:
      kind: topk_softmax
      order: before
      p_norm: 1
      jitter: 0.01
      balance:
        aux_loss: 0
        batched_loss: 0.05
  rope:
    theta: 500000
  kv_heads: 4
data:
  sequence: 512
  train: [{path: data/c4/train}]
  seed: 17
  valid: [{path: data/c4/val}]
train:
  global_batch: 256
  steps: 4800
  optimizer:
    kind: adamw
    lr: 6.0e-4
    betas: [0.9, 0.95]
    eps: 1.0e-08
    weight_decay: 0.1
  schedule:
    kind: cosine
    megatron: true
    warmup: 100
    min: 0.1
  precision: bf16
  clip: 1.0
  seed: 17
  recompute: 1
eval:
  every: 500
  batches: 0
  batch: 16
parallel:
  shard: full
  expert: 1
checkpoint:
  dir: runs/dmoe
  every_steps: 1000
  keep: 0
log:
  every: 1
)";

TEST(ConvertRecipe, AFoundryRecipeBecomesOneThatChecks) {
  const Conversion out = convert_recipe(kFoundry, "f.yaml", ForeignKind::kAuto);
  EXPECT_EQ(out.refused, std::vector<std::string>());
  EXPECT_EQ(out.missing, std::vector<std::string>());
  EXPECT_EQ(plain(out.recipe), kFoundryRecipe);
  EXPECT_NO_THROW(validate(read_back(out), {}));
  EXPECT_TRUE(any(out.notes, "MDS"));
  EXPECT_TRUE(any(out.mapped, "fsdp_config.sharding_strategy: FULL_SHARD -> parallel.shard: full"));
}

TEST(ConvertRecipe, FoundrysUnknownKeysAreRefusedAndEpochsToBeFilledIn) {
  std::string text = kFoundry;
  const auto change = [&](const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
  };
  change("max_duration: 4800ba", "max_duration: 1ep");
  change("    moe_top_k: 4", "    moe_topk: 4");
  change("d_model: 256", "d_model: wide");
  const Conversion out = convert_recipe(text, "f.yaml", ForeignKind::kFoundry);
  EXPECT_TRUE(any(out.missing, "train.tokens: max_duration: 1ep: so many times the tokens"));
  EXPECT_TRUE(any(out.refused,
                  "E2003 model.ffn_config.moe_topk: 4: not a key that is known here; "
                  "did you mean model.ffn_config.moe_top_k?"));
  EXPECT_TRUE(any(out.refused, "f.yaml:8: E2005 model.d_model: wide"));
}

// What LLM-Foundry's own files have beside: variables at the root, nulls, empty lists and maps.
constexpr char kFoundryRest[] = R"(data_local: ./c4
data_remote:
run_name:
length: 128
max_seq_len: ${length}
model:
  name: mpt_causal_lm
  emb_pdrop: 0
  resid_pdrop: 0
  expansion_ratio: 1.75
  use_pad_tok_in_ffn: false
  fuse_norm_attn_norm: true
  use_train_metrics: true
  logit_scale: null
  attn_config: {attn_uses_sequence_id: true, alibi: false, alibi_bias_max: 8,
                attn_type: grouped_query_attention, kv_n_heads: 8}
  ffn_config:
    ffn_type: mb_dmoe
    ffn_hidden_size: 320
    moe_num_experts: 16
    moe_world_size: 8
    moe_normalize_expert_weights: null
    quantize_inputs_num_bits: 8
    quantize_rematerialize_num_bits: 8
    quantize_scatter_num_bits: 8
loggers: {}
callbacks: {lr_monitor: {}, scheduled_gc: {batch_interval: 1000}}
icl_tasks: []
code_paths: []
icl_seq_len: 1024
autoresume: true
accumulate_train_batch_on_tokens: true
dist_timeout: 600
parallelism_config: {fsdp: {activation_checkpointing: true, limit_all_gathers: true},
                     tp: {layer_plan: x}}
train_loader:
  dataset: {shuffle: true, eos_token_id: 0, predownload: null,
            streams: {local: {local: "${data_local}", split: train, remote: "${data_remote}"}}}
optimizer: {name: decoupled_lionw, lr: 1.0e-6, betas: [0.9, 0.95], weight_decay: 1.0e-6}
max_duration: 50ba
eval_interval: 1ep
save_interval: 1ep
save_folder: ./ckpts
load_weights_only: false
global_train_batch_size: 32
)";

TEST(ConvertRecipe, FoundrysFilesConvertAsTheyStand) {
  const Conversion out = convert_recipe(kFoundryRest, "f.yaml", ForeignKind::kAuto);
  EXPECT_EQ(out.refused, std::vector<std::string>());
  EXPECT_EQ(out.missing, std::vector<std::string>());
  const Recipe r = read_back(out);
  EXPECT_NO_THROW(validate(r, {}));
  EXPECT_EQ(r.data.sequence, 128);
  EXPECT_EQ(share_of(r.data.train[0]).weight, 1);
  EXPECT_EQ(r.data.documents, Documents::kEod);
  EXPECT_EQ(r.model.moe.ffn.hidden, 320);
  EXPECT_EQ(r.model.moe.ffn.quantize.rematerialize, 8);
  EXPECT_EQ(r.parallel.expert, 8);
  EXPECT_EQ(r.train.recompute, "1");
  EXPECT_EQ(r.run.hang_timeout.ns, seconds(600).ns);
  EXPECT_TRUE(any(out.ignored, "model.expansion_ratio: 1.75: ffn_hidden_size says it"));
  EXPECT_TRUE(any(out.ignored, "data_local: ./c4: used where it is named"));
  EXPECT_TRUE(any(out.ignored, "icl_tasks: []: empty"));
  EXPECT_TRUE(any(out.ignored, "loggers: {}"));
  EXPECT_TRUE(any(out.ignored, "callbacks.lr_monitor: {}"));
  EXPECT_TRUE(any(out.ignored, "parallelism_config.fsdp.limit_all_gathers"));
  EXPECT_TRUE(any(out.ignored, "eval_interval: 1ep: there is no eval_loader"));
  EXPECT_TRUE(any(out.ignored, "save_interval: 1ep: an epoch is not a length here"));
  EXPECT_EQ(out.deferred, std::vector<std::string>());
  EXPECT_TRUE(any(out.ignored, "parallelism_config.tp.layer_plan: x: parallel.tensor says"));

  std::string text = kFoundryRest;
  const auto change = [&](const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
  };
  change("emb_pdrop: 0", "emb_pdrop: 0.1");
  change("limit_all_gathers", "limit_gathers");
  change("lr_monitor", "layer_freezing");
  change("shuffle: true", "shuffle: false");
  const Conversion bad = convert_recipe(text, "f.yaml", ForeignKind::kAuto);
  EXPECT_EQ(bad.refused.size(), 4U);
  EXPECT_TRUE(any(bad.refused, "E2003 parallelism_config.fsdp.limit_gathers"));
  EXPECT_TRUE(any(bad.refused, "E2003 callbacks.layer_freezing"));
  EXPECT_TRUE(any(bad.refused, "E2005 model.emb_pdrop: 0.1"));
  EXPECT_TRUE(any(bad.refused, "E2005 train_loader.dataset.shuffle: false"));
}

TEST(ConvertRecipe, AdafactorIsOneAndSaysThatItsConstantsAreNotTheirs) {
  const Conversion out = convert_recipe(
      "python pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 "
      "--seq-length 64 --max-position-embeddings 64 --lr 4e-4 --optimizer adafactor\n",
      "run.sh", ForeignKind::kAuto);
  EXPECT_NE(out.recipe.find("kind: adafactor  #"), std::string::npos) << out.recipe;
  EXPECT_EQ(out.recipe.find("betas:"), std::string::npos) << out.recipe;
  EXPECT_TRUE(any(out.notes, "--optimizer adafactor: as torch.optim.Adafactor has it"));
}

// As its files that go on with DBRX's weights on chats of the hub.
TEST(ConvertRecipe, FoundrysPublishedModelIsAPresetAndItsWeightsAnImport) {
  const std::string text = R"(max_seq_len: 64
model:
  name: hf_causal_lm
  pretrained: true
  use_auth_token: true
  config_overrides: {}
  use_flash_attention_2: true
  pretrained_model_name_or_path: databricks/dbrx-instruct
train_loader:
  name: finetuning
  dataset: {split: train, hf_name: a/chats, shuffle: true, packing_ratio: auto, decoder_only_format: true}
eval_loader: {name: finetuning, dataset: {split: test, hf_name: a/chats}}
optimizer: {name: decoupled_lionw, lr: 1.0e-6, betas: [0.9, 0.95], weight_decay: 1.0e-6}
max_duration: 4ep
eval_interval: 1ep
global_train_batch_size: 64
run_name: chat
callbacks:
  hf_checkpointer: {overwrite: true, save_interval: 1dur}
)";
  const Conversion out = convert_recipe(text, "f.yaml", ForeignKind::kFoundry);
  EXPECT_EQ(out.refused, std::vector<std::string>());
  for (const char* line : {"preset: dbrx  #", "kind: lion  #"}) {
    EXPECT_NE(out.recipe.find(line), std::string::npos) << line << " in\n" << out.recipe;
  }
  for (const char* line :
       {"checkpoint.init_from: download databricks/dbrx-instruct, `troupe import dbrx-instruct "
        "runs/dbrx-instruct`",
        "data.train: train_loader.dataset.hf_name: a/chats: download it",
        "data.valid: eval_loader.dataset.hf_name: a/chats: download it",
        "train.tokens: ", "eval.every: eval_interval: 1ep: an epoch is as long as the data"}) {
    EXPECT_TRUE(any(out.missing, line)) << line;
  }
  std::string other = text;
  other.replace(other.find("databricks/dbrx"), 15, "someone/unknown");
  EXPECT_TRUE(any(convert_recipe(other, "f.yaml", ForeignKind::kFoundry).refused,
                  "is none of the models of `troupe inspect model`"));
  other = text;
  other.replace(other.find("  pretrained: true"), 18, "  peft_config: {r: 8}");
  EXPECT_TRUE(any(convert_recipe(other, "f.yaml", ForeignKind::kFoundry).refused,
                  "model.peft_config.r: 8: adapters are not converted"));
}

TEST(ConvertRecipe, FoundrysDefaultsAreItsOwn) {
  const Recipe r = read_back(convert_recipe(
      "model: {name: mpt_causal_lm}\nmax_duration: 2e9tok\noptimizer: {name: decoupled_lionw, lr: "
      "1e-4, weight_decay: 0}\nmax_seq_len: 2048\n",
      "f.yaml", ForeignKind::kFoundry));
  EXPECT_EQ(r.model.width, 2048);
  EXPECT_EQ(r.model.ffn, 8192);
  EXPECT_EQ(r.model.act, FfnAct::kGelu);
  EXPECT_EQ(r.model.positions, PositionForm::kLearned);
  EXPECT_TRUE(r.model.tie_embeddings && r.model.bias);
  EXPECT_EQ(r.train.tokens.value, 2'000'000'000);
  EXPECT_EQ(r.train.optimizer.kind(), "lion");
  EXPECT_EQ(r.train.clip, 0);
}

TEST(ConvertRecipe, KindsAreTold) {
  EXPECT_EQ(foreign_kind(kMixtral), ForeignKind::kMegatron);
  EXPECT_EQ(foreign_kind(kFoundry), ForeignKind::kFoundry);
  EXPECT_EQ(foreign_kind("hidden_size: 64\nmoe_num_experts: 4\n"), ForeignKind::kMegaBlocks);
  EXPECT_EQ(foreign_kind("Arguments(moe_top_k=1)"), ForeignKind::kMegaBlocks);
  EXPECT_EQ(foreign_kind("--num-layers 2"), ForeignKind::kMegatron);
  EXPECT_THROW(megatron("just words"), Error);
}

}  // namespace
}  // namespace troupe
