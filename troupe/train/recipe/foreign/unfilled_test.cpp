// Scripts that leave much to their arguments, and to a JSON beside them.
#include <gtest/gtest.h>

#include "troupe/train/recipe/foreign/convert_test.h"

namespace troupe {
namespace {

// As Pai's are, of our own making.
constexpr const char* kPaiLike = R"(#!/bin/bash
MODEL_SIZE=$1
PR=$2
SFT=${3}
if [ $MODEL_SIZE = A3B ]; then
  NUM_LAYERS=8
  moe_options=" --num-experts 8 --moe-router-topk 2 --moe-ffn-hidden-size 32"
  tie_option=" \
    --untie-embeddings-and-output-weights"
elif [ $MODEL_SIZE = 1B ]; then
  NUM_LAYERS=4
  moe_options=""
  tie_option=""
fi
if [ $PR = bf16 ]; then
  pr_options=" --bf16"
fi
if [ $SFT = true ]; then
  TRAIN_ITERS=7
  sft_options=" --train-mode finetune"
else
  TRAIN_ITERS=9
  sft_options=" --train-mode pretrain"
fi
run_cmd="torchrun pretrain_qwen.py --num-layers ${NUM_LAYERS} --hidden-size 64 \
  --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 --micro-batch-size 1 \
  --global-batch-size 4 --train-iters ${TRAIN_ITERS} --lr 1e-3 --min-lr 1e-4 --vocab-size 128 \
  --ffn-hidden-size 128 --save run --data-path corpus --swiglu --normalization RMSNorm \
  ${pr_options} ${moe_options} ${sft_options} ${tie_option}"
eval ${run_cmd}
)";

Conversion pai_like(const std::map<std::string, std::string>& variables) {
  return convert_recipe(kPaiLike, "run.sh", ForeignKind::kMegatron, variables);
}

TEST(Unfilled, WhatHangsOnAnArgumentThatIsNotGivenIsNotWritten) {
  const Conversion out = pai_like({});
  EXPECT_EQ(out.refused, std::vector<std::string>());
  for (const char* key : {"precision", "tie_embeddings", "layers", "steps", "experts", "dropout"}) {
    EXPECT_EQ(plain(out.recipe).find(std::string(" ") + key + ':'), std::string::npos)
        << key << '\n'
        << out.recipe;
  }
  for (const char* key : {"train.precision: --bf16 not given, unless ${pr_options}, ${moe_options}",
                          "model.tie_embeddings: ", "model.layers: ", "train.steps: ",
                          "model.moe.experts: ", "${tie_option} is given from outside"}) {
    EXPECT_TRUE(any(out.missing, key)) << key;
  }
  EXPECT_TRUE(any(out.notes, "that nobody gives is left open: $1, $2, ${3}"));
  EXPECT_TRUE(any(out.mapped, "--hidden-size 64 -> model.width: 64"));  // what is known is written
}

TEST(Unfilled, WithItsArgumentsAScriptIsWhole) {
  const Conversion out = pai_like({{"1", "A3B"}, {"2", "bf16"}, {"3", "false"}});
  EXPECT_EQ(out.missing, std::vector<std::string>());
  const Recipe r = read_back(out);
  EXPECT_EQ(r.train.precision, Precision::kBf16);
  EXPECT_EQ(r.train.steps, 9);
  EXPECT_EQ(r.model.layers, 8);
  EXPECT_EQ(r.model.moe.experts, 8);
  EXPECT_FALSE(r.model.tie_embeddings);
  EXPECT_EQ(read_back(pai_like({{"1", "1B"}, {"2", "bf16"}, {"3", "true"}})).model.moe.experts, 0);
}

TEST(Unfilled, TheProgramThatGatesItsSharedExpertIsKnown) {
  const std::string flags =
      arguments("--num-experts 8 --moe-router-topk 2 --moe-shared-expert-intermediate-size 48");
  const auto form = [&](const std::string& program) {
    return read_back(megatron("torchrun " + program + ' ' + flags)).model.moe.shared.form;
  };
  EXPECT_EQ(form("examples/qwen2/pretrain_qwen2_moe.py"), SharedForm::kGate);
  EXPECT_EQ(form("pretrain_gpt.py"), SharedForm::kSum);
}

std::string with_json(const std::string& json) {
  return "CONFIG=ds.json\nCLIP=0.5\ncat <<EOT > $CONFIG\n" + json + "\nEOT\n" +
         "deepspeed pretrain_gpt.py --deepspeed --deepspeed_config=$CONFIG --fp16 --clip-grad "
         "2.0 " +
         arguments("");
}

TEST(Unfilled, DeepSpeedsJsonIsReadWhereTheScriptWritesIt) {
  const Conversion out = megatron(with_json(
      R"({"train_batch_size": 4, "gradient_clipping": $CLIP, "steps_per_print": 1,
 "zero_optimization": {"stage": 1}, "curriculum_learning": {"enabled": false, "min_difficulty": 8},
 "fp16": {"enabled": true, "loss_scale": 0, "loss_scale_window": 500, "hysteresis": 3,
 "min_loss_scale": 2, "initial_scale_power": 11}})"));
  EXPECT_EQ(out.refused, std::vector<std::string>());
  EXPECT_EQ(out.missing, std::vector<std::string>());
  const TrainConfig train = read_back(out).train;
  EXPECT_EQ(train.clip, 0.5);
  EXPECT_EQ(train.loss_scale.initial, 2048);
  EXPECT_EQ(train.loss_scale.window, 500);
  EXPECT_EQ(train.loss_scale.hysteresis, 3);
  EXPECT_EQ(train.loss_scale.least, 2);
  EXPECT_TRUE(any(out.ignored, "zero_optimization.stage: 1: how ranks share the state"));
  const Conversion grows =
      megatron(with_json(R"({"curriculum_learning": {"enabled": true, "min_difficulty": 8}})"));
  EXPECT_TRUE(any(grows.refused, "curriculum_learning.enabled: true: rows that grow longer"));
  EXPECT_EQ(read_back(grows).train.clip, 0);  // its engine's default
  EXPECT_TRUE(any(megatron(with_json(R"({"made_up": 1})")).refused, "E2003 made_up: 1: not a key"));
}

TEST(Unfilled, AJsonThatTheScriptDoesNotHoldIsListed) {
  const std::string why = "--deepspeed-config ds.json: its JSON is not read";
  const std::string flags = "deepspeed pretrain_gpt.py --deepspeed --deepspeed_config ds.json ";
  EXPECT_TRUE(any(megatron(flags + arguments("")).missing, why));
  EXPECT_FALSE(any(megatron(flags + arguments("")).ignored, "--deepspeed-config"));
  EXPECT_TRUE(any(megatron(with_json("{\"a\": ")).missing, "its JSON cannot be read"));
}

TEST(Unfilled, APartOfAFewStepsWarmsUpAsLongAsThere) {
  const auto warmup = [](const std::string& more) {
    const Recipe r = read_back(megatron(arguments(more)));  // 100 steps of 4 samples
    return std::get<LinearLr>(r.train.schedule);
  };
  EXPECT_EQ(warmup("--lr-warmup-fraction 0.05").warmup, (Span{5, Span::Unit::kSteps}));
  EXPECT_EQ(warmup("--lr-warmup-fraction 0.013").warmup, (Span{5, Span::Unit::kSamples}));
  // Shorter than a sample, and the first step still has the first rate.
  EXPECT_EQ(warmup("--lr-warmup-fraction 0.001").warmup, (Span{1, Span::Unit::kSamples}));
  const LinearLr both = warmup("--lr-warmup-fraction 0.013 --lr-decay-iters 90");
  EXPECT_EQ(both.warmup, (Span{5, Span::Unit::kSamples}));
  EXPECT_EQ(both.end, (Span{360, Span::Unit::kSamples}));
  EXPECT_TRUE(any(megatron(arguments("--lr-warmup-fraction 0.013 --lr-decay-iters 90")).mapped,
                  "--lr-decay-iters 90 -> train.schedule.end: 360 samples"));
}

TEST(Unfilled, AVocabularysFilesAreListed) {
  for (const char* flags :
       {"--vocab-file v/vocab.json --merge-file v/merges.txt",
        "--tokenizer-type GPT2BPETokenizer --vocab-file v/vocab.json --merge-file v/merges.txt",
        "--tokenizer-type SentencePieceTokenizer --tokenizer-model m --vocab-file v/vocab.json",
        "--vocab-file v/vocab.json", "--merge-file v/merges.txt"}) {
    const Conversion out = megatron(arguments(flags));
    for (const std::string name : {"--vocab-file", "--merge-file"}) {
      if (std::string(flags).find(name) == std::string::npos) continue;
      EXPECT_TRUE(any(out.mapped, name) || any(out.ignored, name) || any(out.refused, name) ||
                  any(out.missing, name))
          << name << " of " << flags;
    }
  }
}

}  // namespace
}  // namespace troupe
