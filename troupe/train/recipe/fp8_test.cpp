#include "troupe/train/recipe/fp8.h"

#include <gtest/gtest.h>

#include "troupe/core/check.h"
#include "troupe/train/recipe/experts_kernels.h"

namespace troupe {
namespace {

ModelConfig model_of(int64_t width, int64_t hidden) {
  ModelConfig m;
  m.layers = 4;
  m.width = width;
  m.heads = 4;
  m.vocab = 64;
  m.moe.experts = 4;
  m.moe.ffn.hidden = hidden;
  return m;
}

std::string fault(const Fp8Config& config, const ModelConfig& model) {
  const auto faults = fp8_faults(config, model);
  return faults.empty() ? "" : faults.front();
}

TEST(Fp8Config, SkippedAndDenseLayersStay) {
  ModelConfig m = model_of(128, 128);
  m.moe.layers = "[0,1,1,1]";
  EXPECT_EQ(fp8_layers({}, m), (std::vector<bool>{false, true, true, true}));
  EXPECT_EQ(fp8_layers({.skip_first = 2, .skip_last = 1}, m),
            (std::vector<bool>{false, false, true, false}));
  const std::string line = fp8_line({.skip_first = 2}, m, {at::kBFloat16, 0});
  EXPECT_NE(line.find("2 of 3 MoE layers"), std::string::npos) << line;
  EXPECT_NE(line.find("Emulated"), std::string::npos) << line;
  EXPECT_NE(line.find("because the device is cpu"), std::string::npos) << line;
}

TEST(Fp8Config, TheLineSaysWhatSharesAScale) {
  const auto line = [](Fp8Recipe recipe) {
    return fp8_line({.recipe = recipe}, model_of(128, 128), {at::kBFloat16, {90, true}});
  };
  EXPECT_EQ(line(Fp8Recipe::kRow).find("one scale"), std::string::npos);
  EXPECT_NE(line(Fp8Recipe::kTensor).find("one scale a tensor, so that a token's bits depend"),
            std::string::npos);
  EXPECT_NE(line(Fp8Recipe::kBlock).find("one scale for 1 x 128 of tokens"), std::string::npos);
  EXPECT_NE(
      line(Fp8Recipe::kDelayed).find("of the largest value of the last 16 steps, above which"),
      std::string::npos);
}

TEST(Fp8Config, RefusesWhatItCannotComputeAndSaysWhatWouldDo) {
  EXPECT_EQ(fault({}, model_of(128, 128)), "");
  EXPECT_NE(fault({}, model_of(64, 128)).find("64"), std::string::npos);
  EXPECT_NE(fault({}, model_of(128, 96)).find("at least 128"), std::string::npos);
  EXPECT_NE(fault({.skip_first = 3, .skip_last = 2}, model_of(128, 128)).find("leave none"),
            std::string::npos);
  EXPECT_NE(fault({.skip_first = 4}, model_of(128, 128)).find("no MoE layer"), std::string::npos);
  EXPECT_NE(fault({.skip_last = -1}, model_of(128, 128)).find("negative"), std::string::npos);
  const auto history = [](Fp8Recipe recipe, int64_t steps) {
    return fault({.recipe = recipe, .history = steps}, model_of(128, 128));
  };
  EXPECT_EQ(history(Fp8Recipe::kDelayed, 1), "");
  EXPECT_NE(history(Fp8Recipe::kDelayed, 0).find("history is 0; it must be 1 step"),
            std::string::npos);
  EXPECT_NE(history(Fp8Recipe::kTensor, 8).find("the recipe is tensor: leave it out"),
            std::string::npos);
  ModelConfig m = model_of(128, 128);
  m.moe.ffn.bias = true;
  EXPECT_NE(fault({}, m).find("model.moe.bias: false"), std::string::npos);
  m = model_of(128, 128);
  m.moe.latent = 64;
  EXPECT_NE(fault({}, m).find("width of 64"), std::string::npos);
}

TEST(Fp8Config, ProjectionsOfAttentionAreInEightBitsWhereTheKeySaysSo) {
  ModelConfig m = model_of(512, 128);
  m.moe.layers = "[0,1,1,1]";
  EXPECT_EQ(fault({.attention = true}, m), "");
  EXPECT_EQ(fp8_attention_layers({}, m), (std::vector<bool>{false, false, false, false}));
  EXPECT_EQ(fp8_attention_layers({.attention = true, .skip_last = 1}, m),
            (std::vector<bool>{true, true, true, false}));
  const std::string line = fp8_line({.attention = true, .skip_last = 1}, m, {at::kBFloat16, 0});
  EXPECT_NE(line.find("projections of attention of 3 of 4 layers"), std::string::npos) << line;
  EXPECT_EQ(fp8_line({}, m, {at::kBFloat16, 0}).find("projections"), std::string::npos);
  const auto cut = fp8_faults({.attention = true}, m, {.tensor = 2});
  EXPECT_EQ(cut, std::vector<std::string>());
  m.attn_gate = true;
  EXPECT_NE(fault({.attention = true}, m).find("model.attn_gate has no products in 8 bits"),
            std::string::npos);
  m.delta.emplace();
  EXPECT_NE(fault({.attention = true}, m).find("model.delta has no products in 8 bits"),
            std::string::npos);
  m.delta.reset(), m.attn_gate = false;
  m.head_dim = 64;
  const auto narrow = fp8_faults({.attention = true}, m, {.tensor = 4});
  ASSERT_EQ(narrow.size(), 1u);
  EXPECT_NE(narrow[0].find("a side of 64 on each of 4 tensor ranks"), std::string::npos)
      << narrow[0];
  m.kv_heads = 1;
  EXPECT_NE(fault({.attention = true}, m).find("a side of 64"), std::string::npos);
}

// A product of latents that no group of 128 fits stays as it is; where none fits nothing would be
// in 8 bits.
TEST(Fp8Config, LatentProjectionsThatDoNotFitAreNamedInTheLine) {
  ModelConfig m = model_of(512, 128);
  m.mla.emplace();
  EXPECT_EQ(fault({.attention = true}, m), "");
  const std::string line = fp8_line({.attention = true}, m, {at::kBFloat16, {90, true}});
  EXPECT_NE(line.find("of 4 of 4 layers (kv_down (576 x 512) stays in bf16: a side is no multiple "
                      "of 128)"),
            std::string::npos)
      << line;
  EXPECT_NE(line.find("In 8 bits on the tensor cores"), std::string::npos) << line;
  m.heads = 2;
  m.mla->nope_dim = m.mla->value_dim = 64;  // 2 x 64 columns of out
  const auto cut = fp8_faults({.attention = true}, m, {.tensor = 2});
  ASSERT_EQ(cut.size(), 1u);
  EXPECT_NE(cut[0].find("out (512 x 64) on each of 2 tensor ranks"), std::string::npos) << cut[0];
  m.mla->rope_dim = 128;
  EXPECT_EQ(fp8_line({.attention = true}, m, {at::kBFloat16, {90, true}}).find("stays"),
            std::string::npos);
  m.mla = MlaConfig{.kv_rank = 100, .nope_dim = 20, .rope_dim = 4, .value_dim = 20};
  const std::string none = fault({.attention = true}, m);
  EXPECT_NE(none.find("no projection of model.mla"), std::string::npos) << none;
  EXPECT_NE(none.find("kv_down (104 x 512)"), std::string::npos) << none;
}

TEST(Fp8Config, FeedForwardsAreInEightBitsWhereTheKeySaysSo) {
  ModelConfig m = model_of(512, 128);
  m.moe.layers = "[0,1,1,1]";
  m.ffn = 1024;
  EXPECT_EQ(fp8_ffn_layers({}, m), (std::vector<bool>{false, false, false, false}));
  EXPECT_EQ(fp8_ffn_layers({.ffn = true}, m), (std::vector<bool>{true, false, false, false}));
  m.moe.shared.experts = 1;
  EXPECT_EQ(fp8_ffn_layers({.ffn = true, .skip_last = 1}, m),
            (std::vector<bool>{true, true, true, false}));
  EXPECT_EQ(fault({.ffn = true}, m), "");
  const std::string line = fp8_line({.ffn = true, .skip_last = 1}, m, {at::kBFloat16, {90, true}});
  EXPECT_NE(line.find("dense feed-forwards and shared experts of 3 of 4 layers"), std::string::npos)
      << line;
  EXPECT_NE(line.find("In 8 bits on the tensor cores"), std::string::npos) << line;
  m.act = FfnAct::kGelu;
  const std::string gelu = fp8_line({.ffn = true}, m, {at::kBFloat16, {90, true}});
  EXPECT_NE(gelu.find("MoE layers (tensor cores)"), std::string::npos) << gelu;
  EXPECT_NE(gelu.find("4 of 4 layers (emulated: experts are not plain SwiGLU"), std::string::npos)
      << gelu;
}

TEST(Fp8Config, FeedForwardsItCannotComputeAreRefused) {
  ModelConfig m = model_of(512, 128);
  EXPECT_NE(fault({.ffn = true}, m).find("no layer outside the skipped ones"), std::string::npos);
  m.moe.layers = "[0,1,1,1]";
  m.ffn = 1024 + 64;
  EXPECT_NE(fault({.ffn = true}, m).find("1088 wide, which must be a multiple of 128"),
            std::string::npos);
  EXPECT_EQ(fault({.ffn = true, .skip_first = 1}, m).find("ffn: no layer"), 0u);
  m.ffn = 1024 + 128;
  EXPECT_EQ(fault({.ffn = true}, m), "");
  const auto cut = fp8_faults({.ffn = true}, m, {.tensor = 2});
  ASSERT_EQ(cut.size(), 1u);
  EXPECT_NE(cut[0].find("a multiple of 256: of 128 on each of 2 tensor ranks"), std::string::npos)
      << cut[0];
  m.ffn_bias = true;
  EXPECT_NE(fault({.ffn = true}, m).find("model.ffn_bias: false"), std::string::npos);
  m.ffn_bias = false;
  m.moe.shared.experts = 1;
  m.moe.shared.hidden = 100;
  EXPECT_NE(fault({.ffn = true}, m).find("the shared expert of layer 1 is 100 wide"),
            std::string::npos);
}

// A model without experts may compute in 8 bits as well.
TEST(Fp8Config, ADenseModelNeedsAKeyThatNamesItsProducts) {
  ModelConfig m = model_of(512, 128);
  m.moe = MoeConfig();
  m.ffn = 1024;
  EXPECT_NE(fault({}, m).find("ffn: true"), std::string::npos);
  EXPECT_EQ(fault({.attention = true}, m), "");
  EXPECT_EQ(fault({.ffn = true}, m), "");
  const std::string line = fp8_line({.ffn = true}, m, {at::kBFloat16, 0});
  EXPECT_EQ(line.find("fp8: dense feed-forwards"), 0u) << line;
  EXPECT_EQ(line.find("MoE layers"), std::string::npos) << line;
}

}  // namespace
}  // namespace troupe
