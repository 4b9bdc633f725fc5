#include "troupe/train/recipe/foreign/megablocks.h"

#include <gtest/gtest.h>

#include "troupe/train/recipe/foreign/convert_test.h"

namespace troupe {
namespace {

TEST(MegaBlocks, MegaBlocksFlagsBecomeItsLayer) {
  const Recipe r = read_back(megatron(
      arguments("--moe-num-experts 64 --moe-top-k 1 --moe-capacity-factor 0 --moe-loss-weight 0.1 "
                "--moe-jitter-eps 0.01")));
  const ModelConfig& m = r.model;
  EXPECT_EQ(m.moe.experts, 64);
  EXPECT_EQ(m.moe.ffn.hidden, 384);
  EXPECT_EQ(m.moe.capacity.factor, 0);
  EXPECT_EQ(m.moe.ffn.form.activation, "gelu_tanh");
  EXPECT_FALSE(m.moe.ffn.form.gated);
  EXPECT_TRUE(m.moe.output_bias);
  EXPECT_FALSE(m.moe.ffn.bias);
  const auto& router = std::get<TopkSoftmaxRouting>(m.moe.router);
  EXPECT_EQ(router.order, SoftmaxOrder::kBefore);
  EXPECT_EQ(router.balance.batched_loss, 0.1);
  EXPECT_EQ(router.balance.aux_loss, 0);
  const auto capacity = [](const std::string& program, const std::string& more) {
    return read_back(
               megatron("python " + program + ' ' + arguments("--moe-num-experts 64 " + more)))
        .model.moe.capacity;
  };
  EXPECT_EQ(capacity("pretrain_gpt.py", "").factor, 0);  // MegaBlocks' scripts of dMoEs
  EXPECT_EQ(capacity("megablocks/pretrain_dmoe.py", "").factor, 0);
  EXPECT_EQ(capacity("megablocks/pretrain_moe.py", "").factor, 1);
  EXPECT_TRUE(capacity("megablocks/pretrain_moe.py", "").pad);
  EXPECT_EQ(capacity("pretrain_gpt.py", "--moe-capacity-factor 2").factor, 2);
  EXPECT_EQ(capacity("pretrain_gpt.py", "--moe-capacity-factor 16384").factor, 0);  // holds all
}

TEST(MegaBlocks, MegaBlocksQuantizedActivationsAreMapped) {
  const auto expect = [](const Conversion& out) {
    EXPECT_EQ(out.refused, std::vector<std::string>());
    const QuantizeConfig q = read_back(out).model.moe.ffn.quantize;
    EXPECT_EQ(q.inputs, 8);
    EXPECT_EQ(q.rematerialize, 4);
    EXPECT_EQ(q.scatter, 8);
  };
  expect(
      megatron(arguments("--moe-num-experts 8 --quantize-inputs-num-bits 8 "
                         "--quantize-rematerialize-num-bits 4 --quantize-scatter-num-bits 8")));
  expect(convert_recipe(
      "Arguments(moe_num_experts=8, quantize_inputs_num_bits=8, moe_weight_parallelism=False,\n"
      "quantize_rematerialize_num_bits=4, quantize_scatter_num_bits=8)",
      "layer.py", ForeignKind::kAuto));
}

// As MegaBlocks' scripts read their arguments.
constexpr char kLaunch[] = R"(#!/bin/bash
EXP_DIR=$1
STEPS=20000
if [ -n "${2}" ]; then
    STEPS=$2;
fi
EXPERTS=64
if [[ -n "$3" && $3 != 64 ]]; then EXPERTS=$3; elif [ -z "$4" ]; then EXPERTS=32; fi
FILES="\
1.0 \
../pile/01 \
1.0 \
../pile/02"
COMPUTE="--bf16 --DDP-impl local --expert-model-parallelism"
[ -z "$5" ] && COMPUTE+=" --use-flash-attn"
torchrun --nproc_per_node 8 third_party/Megatron-LM/pretrain_gpt.py \
    --moe-num-experts=${EXPERTS} --moe-top-k=1 --num-layers 6 --hidden-size 512 \
    --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 --glu \
    --micro-batch-size 64 --global-batch-size 512 --train-iters ${STEPS} --lr 0.00015 \
    --data-path ${FILES} --vocab-file ../gpt2-vocab.json --merge-file ../gpt2-merges.txt \
    ${COMPUTE} --save ./${EXP_DIR} |& tee ./${EXP_DIR}/train.log
)";

TEST(MegaBlocks, ALaunchScriptTakesItsArgumentsFromOutside) {
  const Conversion bare = convert_recipe(kLaunch, "launch.sh", ForeignKind::kAuto);
  EXPECT_EQ(bare.refused, std::vector<std::string>());
  EXPECT_TRUE(any(bare.missing, "checkpoint.dir: --save ./$1 is given from outside"));
  EXPECT_EQ(bare.missing.size(), 1U);
  EXPECT_TRUE(any(bare.notes, "not given: $2, $3, $4, $5 (--variable 2=VALUE)"));
  const Recipe r = read_back(bare);
  EXPECT_EQ(r.train.steps, 20000);
  EXPECT_EQ(r.model.moe.experts, 32);
  EXPECT_EQ(r.model.vocab, 50257);
  EXPECT_EQ(r.data.tokenizer, "..");
  EXPECT_EQ(r.data.train.size(), 2U);
  EXPECT_TRUE(r.model.moe.ffn.form.gated);
  EXPECT_EQ(r.model.moe.ffn.hidden, 2048);
  EXPECT_TRUE(any(bare.ignored, "--expert-model-parallelism: how many ranks"));
  EXPECT_TRUE(any(bare.ignored, "--use-flash-attn"));

  const Conversion given = convert_recipe(kLaunch, "launch.sh", ForeignKind::kAuto,
                                          {{"1", "x"}, {"2", "300"}, {"3", "16"}, {"5", "1"}});
  EXPECT_EQ(given.missing, std::vector<std::string>());
  EXPECT_EQ(read_back(given).checkpoint.dir, "./x");
  EXPECT_EQ(read_back(given).train.steps, 300);
  EXPECT_EQ(read_back(given).model.moe.experts, 16);
  EXPECT_FALSE(any(given.ignored, "--use-flash-attn"));
}

TEST(MegaBlocks, MegaBlocksArgumentsBecomeALayer) {
  const Conversion out = convert_recipe(R"(
args = Arguments(
    hidden_size=512,  # D
    ffn_hidden_size=1024,
    moe_num_experts=16, moe_top_k=4,
    moe_capacity_factor=0,
    moe_normalize_expert_weights=1,
    activation_fn=partial(F.gelu, approximate="none"),
    mlp_type='glu',
    shared_expert=True, shared_expert_hidden_size=256, shared_expert_weighted_sum=True,
    moe_zloss_weight=1e-3, uniform_expert_assignment=False,
    mlp_impl='grouped', bf16=True, fp16=False, bias=False, tokens=3)
)",
                                        "layer.py", ForeignKind::kAuto);
  ASSERT_EQ(out.refused.size(), 1U);
  EXPECT_NE(out.refused[0].find("layer.py:12: E2003 tokens: 3"), std::string::npos)
      << out.refused[0];
  const ModelConfig m = read_back(out).model;
  EXPECT_EQ(m.width, 512);
  EXPECT_EQ(m.moe.experts, 16);
  EXPECT_EQ(m.moe.top_k, 4);
  EXPECT_EQ(m.moe.ffn.form.activation, "gelu");
  EXPECT_TRUE(m.moe.ffn.form.gated);
  EXPECT_FALSE(m.moe.output_bias);
  EXPECT_EQ(m.moe.shared.form, SharedForm::kWeighted);
  EXPECT_EQ(m.moe.shared.hidden, 256);
  EXPECT_EQ(m.moe.capacity.factor, 0);
  EXPECT_EQ(std::get<TopkSoftmaxRouting>(m.moe.router).p_norm, 1);
  EXPECT_EQ(std::get<TopkSoftmaxRouting>(m.moe.router).balance.z_loss, 1e-3);
}

}  // namespace
}  // namespace troupe
