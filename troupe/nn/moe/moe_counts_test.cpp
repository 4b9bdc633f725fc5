#include "troupe/nn/moe/moe_counts.h"

#include <gtest/gtest.h>

#include <cmath>

namespace troupe {
namespace {

struct Model {
  MoeSizes moe;
  int64_t layers, heads, kv_heads, head_dim, vocab;
};

// Untied embedding and head, two norms without bias a layer and one at the end.
int64_t llama_params(const Model& m, int64_t experts) {
  const int64_t h = m.moe.width, d = m.head_dim;
  const int64_t attention = h * (m.heads + 2 * m.kv_heads) * d + m.heads * d * h;
  return m.layers * (attention + 2 * h + moe_params_with(m.moe, experts)) + h + 2 * m.vocab * h;
}

constexpr Model kDbrx{
    {.width = 6144, .hidden = 10752, .experts = 16, .top_k = 4}, 40, 48, 8, 128, 100352};
constexpr Model kMixtral{
    {.width = 4096, .hidden = 14336, .experts = 8, .top_k = 2}, 32, 32, 8, 128, 32000};

TEST(MoeCounts, N1_DbrxAndMixtralAreExact) {
  EXPECT_EQ(llama_params(kDbrx, 16), 131'596'523'520);
  EXPECT_EQ(llama_params(kDbrx, 4), 36'469'708'800);
  EXPECT_EQ(llama_params(kMixtral, 8), 46'702'792'704);
  EXPECT_EQ(llama_params(kMixtral, 2), 12'879'925'248);
}

// GPT-2 biases, learned positions, tied embedding of 51,200, sequence 1,024.
int64_t gpt_params(int64_t h, int64_t layers) {
  const MoeSizes moe{
      .width = h, .hidden = 4 * h, .experts = 64, .top_k = 1, .gated = false, .output_bias = true};
  const int64_t attention = 4 * h * h + 4 * h, norms = 4 * h;
  return layers * (attention + norms + moe_params(moe)) + 2 * h + (51200 + 1024) * h;
}

TEST(MoeCounts, N1_MegaBlocksPaper) {
  EXPECT_NEAR(static_cast<double>(gpt_params(512, 6)) * 1e-6, 838.56, 0.005);
  EXPECT_NEAR(static_cast<double>(gpt_params(768, 12)) * 1e-6, 3692.97, 0.005);
  EXPECT_NEAR(static_cast<double>(gpt_params(1024, 24)) * 1e-6, 13040.84, 0.005);
}

TEST(MoeCounts, N1_BiasesSharedExpertsAndLatentWidth) {
  MoeSizes s{.width = 10, .hidden = 7, .experts = 3, .top_k = 2};
  EXPECT_EQ(moe_params(s), 3 * 210 + 30);
  s.router_gate = false;
  EXPECT_EQ(moe_params(s), 3 * 210);
  EXPECT_EQ(moe_forward_flops(s).router, 0);
  s.router_gate = true;
  s.expert_bias = s.router_bias = s.output_bias = true;
  EXPECT_EQ(moe_params(s), 3 * (210 + 14 + 10) + 33 + 10);
  s.shared_hidden = 5;
  s.shared_gate = true;
  EXPECT_EQ(moe_params(s), 3 * 234 + 33 + 10 + 150 + 10);
  s.latent = 4;
  EXPECT_EQ(expert_params(s), 3 * 4 * 7 + 14 + 4);
  EXPECT_EQ(moe_params(s), 3 * 102 + 33 + 10 + 160 + 2 * 10 * 4);
}

struct AttentionSizes {
  int64_t width, heads, kv_heads, head_dim, sequence;
};

// Projections 2h(q + 2kv)d + 2qdh; the core 4sqd as the MegaBlocks paper and LLM-Foundry count it
// (the full square). For one token, forward.
constexpr int64_t attention_projection_flops(const AttentionSizes& a) {
  return 2 * a.width * (a.heads + 2 * a.kv_heads) * a.head_dim + 2 * a.heads * a.head_dim * a.width;
}
constexpr int64_t attention_core_flops(const AttentionSizes& a) {
  return 4 * a.sequence * a.heads * a.head_dim;
}

// The paper's formula for its dense models: 72 s L h^2 (1 + s / 6h + V / 12Lh).
TEST(MoeCounts, N2_MegaBlocksPaper) {
  const int64_t sizes[5][3] = {
      {512, 6, 316}, {768, 12, 879}, {1024, 24, 2487}, {1536, 24, 5122}, {2048, 24, 8684}};
  for (const auto& [h, layers, want] : sizes) {
    const MoeSizes ffn{.width = h, .hidden = 4 * h, .gated = false};
    const AttentionSizes a{h, h / 64, h / 64, 64, 1024};
    const int64_t token = layers * (attention_projection_flops(a) + attention_core_flops(a) +
                                    moe_forward_flops(ffn).routed) +
                          2 * h * 51200;
    EXPECT_EQ(std::lround(static_cast<double>(3 * 1024 * token) * 1e-9), want) << h;
  }
}

// 3 batch (2 active s + 4 L h s^2), all products with parameters counted as 2 a parameter.
TEST(MoeCounts, N2_LlmFoundry) {
  const Model& m = kDbrx;
  const int64_t s = 2048, h = m.moe.width;
  const AttentionSizes a{h, m.heads, m.kv_heads, m.head_dim, s};
  const int64_t token = m.layers * (attention_projection_flops(a) + attention_core_flops(a) +
                                    moe_forward_flops(m.moe).total()) +
                        2 * h * m.vocab;
  const int64_t no_products = h + m.layers * 2 * h + m.vocab * h;  // norms, embedding
  EXPECT_EQ(token, 2 * (llama_params(m, 4) - no_products) + 4 * m.layers * h * s);
}

TEST(MoeCounts, N2_LatentWidthReplacesTheModels) {
  const MoeSizes s{.width = 64, .hidden = 32, .experts = 8, .top_k = 2, .latent = 16};
  EXPECT_EQ(moe_forward_flops(s).routed, 2 * 3 * 16 * 32 * 2);
  EXPECT_EQ(moe_forward_flops(s).latent, 4 * 64 * 16);
}

}  // namespace
}  // namespace troupe
