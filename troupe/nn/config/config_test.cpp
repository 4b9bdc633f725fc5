#include "troupe/nn/config/config.h"

#include <gtest/gtest.h>

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"

namespace troupe {
namespace {

ModelConfig read(const std::string& yaml) {
  ModelConfig config;
  read_config(parse_yaml(yaml, "x.yaml"), config);
  return config;
}

std::string fault(const std::string& yaml) {
  try {
    validate(read(yaml));
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

constexpr const char* kMoe = "moe: {experts: 8, hidden: 32}";

TEST(ModelConfig, LayersFollowTheirPatternsAndTheFirstDenseOnes) {
  const ModelConfig c =
      read(std::string("{layers: 6, ffn: 64, first_dense: 1, window: 16, ") +
           "window_layers: '[1,0]*3', moe: {experts: 8, hidden: 32, layers: '2'}}");
  std::string moe, window;
  for (int64_t i = 0; i < 6; ++i) {
    moe += layer_config(c, i).moe ? '1' : '0';
    window += layer_config(c, i).window == 16 ? '1' : '0';
  }
  EXPECT_EQ(moe, "001010");
  EXPECT_EQ(window, "101010");
  EXPECT_EQ(num_moe_layers(c), 2);
  EXPECT_TRUE(layer_config(c, 6).moe.has_value() == layer_config(c, 5).moe.has_value());
}

TEST(ModelConfig, LinearLayersFollowTheirPatternAndSayWhatTheyLack) {
  const ModelConfig c = read(
      "{layers: 4, ffn: 64, delta: {layers: '[1,1,1,0]'}, overrides: [{layers: [1], attention: "
      "false}]}");
  std::string linear;
  for (int64_t i = 0; i < 4; ++i) linear += layer_config(c, i).delta ? '1' : '0';
  EXPECT_EQ(linear, "1010");
  const auto delta = [](const std::string& text) {
    return fault("{layers: 2, width: 64, heads: 4, ffn: 64, " + text + "}");
  };
  EXPECT_EQ(delta("delta: {}"), "");
  EXPECT_NE(delta("delta: {key_heads: 3}").find("key_heads must divide value_heads"),
            std::string::npos);
  EXPECT_NE(delta("delta: {conv: 1}").find("model.delta.conv"), std::string::npos);
  EXPECT_NE(delta("delta: {key_dim: 0}").find("model.delta.key_dim"), std::string::npos);
  EXPECT_NE(delta("delta: {layers: '[1,0,1]'}").find("[1,0,1]"), std::string::npos);
  EXPECT_NE(delta("delta: {}, lora: {rank: 2, targets: [attention]}").find("model.lora.targets"),
            std::string::npos);
  EXPECT_NE(delta("attn_gate: true, mla: {}").find("model.attn_gate"), std::string::npos);
}

TEST(ModelConfig, LoraNamesWhatTheModelHas) {
  const auto lora = [](const std::string& text) {
    return fault(std::string("{layers: 2, width: 64, heads: 4, ") + kMoe + ", lora: " + text + "}");
  };
  EXPECT_EQ(lora("{rank: 2, targets: [attention, experts, router]}"), "");
  EXPECT_EQ(lora("{rank: 0, targets: []}"), "");
  EXPECT_EQ(
      lora("{rank: 2, targets: [shared]}"),
      "model.lora.targets: E2005 names shared, and no layer of the model has it: leave it out");
  EXPECT_EQ(lora("{rank: 2, targets: []}"),
            "model.lora.targets: E2005 is empty, and model.lora.rank is 2; name at least one of "
            "attention, experts, shared, router, ffn");
  EXPECT_EQ(
      lora("{rank: 2, targets: [experts, experts]}").find("more than once") != std::string::npos,
      true);
  EXPECT_EQ(lora("{rank: 65}"),
            "model.lora.rank: E2005 is 65 and the model's width is 64; a larger rank than that "
            "adapts nothing more: use at most the width");
  EXPECT_NE(fault("{layers: 2, width: 64, heads: 4, lora: {rank: 2}, moe: {experts: 8, hidden: 32, "
                  "router: {kind: sigmoid_bias}}}")
                .find("model.moe.router.bias_rate: E2005 is 0.001"),
            std::string::npos);
  EXPECT_NE(fault("{layers: 2, width: 64, heads: 4, lora: {rank: 2}, moe: {experts: 8, hidden: 32, "
                  "lora: {rank: 2}}}")
                .find("and model.moe.lora both adapt the model"),
            std::string::npos);
}

TEST(ModelConfig, AFaultHasNoSpaceBeforeItsMark) {
  const std::string text =
      fault(std::string("{layers: 1, width: 64, heads: 4, rope: {fraction: 0.1}, ") + kMoe + "}");
  EXPECT_NE(text.find("1 dimensions of it turn in layer 0; that must be even"), std::string::npos)
      << text;
  EXPECT_EQ(text.find(" ;"), std::string::npos) << text;
}

TEST(ModelConfig, FrozenWeightsInFewBitsNeedAdaptersAndRowsOfWholeGroups) {
  const auto frozen = [](const std::string& lora, const std::string& moe = "experts: 8") {
    return fault("{layers: 2, width: 64, heads: 4, moe: {hidden: 64, " + moe + "}, lora: {" + lora +
                 "}}");
  };
  EXPECT_EQ(frozen("rank: 2, frozen: {targets: [attention, experts]}"), "");
  EXPECT_EQ(frozen("rank: 2, frozen: {format: mxfp4}", "experts: 8, latent: 32"), "");
  const auto says = [&](const std::string& what, const std::string& lora,
                        const std::string& moe = "experts: 8") {
    EXPECT_NE(frozen(lora, moe).find(what), std::string::npos) << frozen(lora, moe);
  };
  says("model.lora.frozen: E2005 keeps weights in few bits, which cannot be trained", "frozen: {}");
  says("model.lora.frozen.targets: E2005 is empty", "rank: 2, frozen: {targets: []}");
  says("names router, which is small", "rank: 2, frozen: {targets: [router]}");
  says("names shared, and no layer", "rank: 2, frozen: {targets: [shared]}");
  says("names experts more than once", "rank: 2, frozen: {targets: [experts, experts]}");
  says(
      "is int8, in which 128 elements of a row share a scale; matrices of experts in layer 0 have "
      "rows of 64 ",
      "rank: 2, frozen: {format: int8}");
  says("have rows of 32 ", "rank: 2, frozen: {}", "experts: 8, latent: 32");
  says("weights in few bits (model.lora.frozen) need impl grouped", "rank: 2, frozen: {}",
       "experts: 8, impl: loop");
}

TEST(ModelConfig, ANullMixtureIsADenseModel) {
  const ModelConfig c = read("{preset: olmoe-1b-7b, moe: null, ffn: 8192}");
  EXPECT_EQ(num_moe_layers(c), 0);
  EXPECT_EQ(c.width, 2048);
  validate(c);
  EXPECT_EQ(num_moe_layers(read("{preset: olmoe-1b-7b, moe: {}}")), 16);
  EXPECT_NE(fault("{preset: olmoe-1b-7b, moe: null}").find("layer 0 is dense"), std::string::npos);
}

TEST(ModelConfig, AnOverrideChangesItsLayersAlone) {
  const ModelConfig c = read(std::string("{layers: 4, width: 64, heads: 4, ffn: 64, ") + kMoe +
                             ", overrides: [{layers: [0, 2], experts: 0, ffn: 128}, {layers: [3], "
                             "experts: 4, top_k: 1, heads: 2, attention: false}]}");
  EXPECT_FALSE(layer_config(c, 0).moe);
  EXPECT_EQ(layer_config(c, 2).ffn, 128);
  EXPECT_EQ(layer_config(c, 1).moe->experts, 8);
  EXPECT_EQ(layer_config(c, 3).moe->experts, 4);
  EXPECT_EQ(layer_config(c, 3).moe->top_k, 1);
  EXPECT_EQ(layer_config(c, 3).kv_heads, 2);
  EXPECT_FALSE(layer_config(c, 3).attention);
}

TEST(ModelConfig, OneInitStdReachesExpertsAndRouters) {
  const ModelConfig c =
      read(std::string("{layers: 2, init_std: 0.01, scaled_init: false, ") + kMoe + "}");
  const MoeConfig moe = *layer_config(c, 0).moe;
  EXPECT_EQ(moe.ffn.init.std, 0.01);
  EXPECT_EQ(moe.ffn.init.down_std, 0.01);
  EXPECT_EQ(gate_of(moe.router)->std, 0.01);
}

TEST(ModelConfig, FaultsAreNamedByTheirKeys) {
  EXPECT_EQ(fault("{width: 64, heads: 4, ffn: 64}"), "");
  EXPECT_NE(fault("{width: 64, heads: 4}").find("model.ffn"), std::string::npos);
  EXPECT_NE(fault("{width: 64, heads: 5, ffn: 8}").find("model.head_dim"), std::string::npos);
  EXPECT_NE(fault("{width: 64, heads: 4, kv_heads: 3, ffn: 8}").find("kv_heads is 3"),
            std::string::npos);
  EXPECT_NE(fault("{width: 12, heads: 4, ffn: 8}").find("must be even"), std::string::npos);
  EXPECT_NE(fault("{ffn: 8, overrides: [{layers: [12]}]}").find("layer 12 of 12"),
            std::string::npos);
  EXPECT_NE(fault("{ffn: 8, rope: {factor: 2}}").find("rope.factor"), std::string::npos);
  EXPECT_NE(fault("{ffn: 8, mla: {rope_dim: 3}}").find("mla.rope_dim"), std::string::npos);
  EXPECT_NE(fault("{ffn: 8, window_layers: '[1]'}").find("too few"), std::string::npos);
  const std::string two = fault("{dropout: 1, z_loss: -1, ffn: 8}");
  EXPECT_NE(two.find("model.dropout"), std::string::npos);
  EXPECT_NE(two.find("model.z_loss"), std::string::npos);
}

TEST(ModelConfig, AVocabularyIsPaddedToAMultiple) {
  EXPECT_EQ(padded_vocab(read("{vocab: 50257, vocab_pad: 128}")), 50304);
  EXPECT_EQ(padded_vocab(read("{vocab: 50304, vocab_pad: 128}")), 50304);
}

}  // namespace
}  // namespace troupe
