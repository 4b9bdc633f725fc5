// Flags of Megatron-LM's own scripts of DeepSeek, Kimi and gpt-oss.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "troupe/core/config/config.h"
#include "troupe/core/config/yaml.h"
#include "troupe/train/recipe/foreign/convert_recipe.h"
#include "troupe/train/recipe/recipe.h"

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

bool any(const std::vector<std::string>& lines, const std::string& what) {
  return std::ranges::any_of(lines,
                             [&](const auto& l) { return l.find(what) != std::string::npos; });
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

}  // namespace
}  // namespace troupe
