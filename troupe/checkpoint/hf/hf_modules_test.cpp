#include "troupe/checkpoint/hf/hf_modules.h"

#include <gtest/gtest.h>

#include "troupe/core/config/config.h"
#include "troupe/nn/model/model.h"

namespace troupe {
namespace {

std::map<std::string, std::string> modules_of(const char* family, const std::string& extra) {
  ModelConfig config;
  read_config(
      parse_yaml("{layers: 2, width: 32, heads: 4, vocab: 61, max_positions: 64, " + extra + "}",
                 "tiny"),
      config);
  return hf_modules(hf_names(*find_hf_family(family), config, /*fused=*/true));
}

using Names = std::map<std::string, std::string>;

void expect(const Names& got, const Names& wanted) {
  for (const auto& [ours, theirs] : wanted) {
    const auto at = got.find(ours);
    ASSERT_NE(at, got.end()) << ours;
    EXPECT_EQ(at->second, theirs) << ours;
  }
}

TEST(HfModules, AreThoseOfTransformers) {
  expect(modules_of("mixtral",
                    "norm: {kind: rms_rounded}, moe: {experts: 4, top_k: 2, hidden: 24, router: "
                    "{kind: topk_softmax, order: after}}"),
         {{"embed.tokens", "model.embed_tokens"},
          {"layers.1", "model.layers.1"},
          {"layers.1.norm1", "model.layers.1.input_layernorm"},
          {"layers.1.attention", "model.layers.1.self_attn"},
          {"layers.1.norm2", "model.layers.1.post_attention_layernorm"},
          {"layers.1.moe.router", "model.layers.1.mlp.gate"},
          {"layers.1.moe", "model.layers.1.mlp"},
          {"head.norm", "model.norm"},
          {"head", "lm_head"}});
  expect(modules_of("llama", "ffn: 40, tie_embeddings: true"),
         {{"layers.0.ffn", "model.layers.0.mlp"}, {"head", "lm_head"}});
  expect(modules_of("gpt2",
                    "ffn: 40, bias: true, norm: {kind: layer, bias: true}, positions: learned, "
                    "act: gelu_tanh, tie_embeddings: true"),
         {{"embed.tokens", "transformer.wte"},
          {"layers.0.norm1", "transformer.h.0.ln_1"},
          {"layers.0.attention", "transformer.h.0.attn"},
          {"layers.0.ffn", "transformer.h.0.mlp"},
          {"head.norm", "transformer.ln_f"}});
}

TEST(HfModules, ARoutersBiasDoesNotNameItsModule) {
  expect(
      modules_of("minimax_m2",
                 "qk_norm: whole, moe: {experts: 8, top_k: 3, hidden: 12, router: {kind: "
                 "sigmoid_bias}}"),
      {{"layers.0.moe.router", "model.layers.0.mlp.gate"}, {"layers.0.moe", "model.layers.0.mlp"}});
}

}  // namespace
}  // namespace troupe
