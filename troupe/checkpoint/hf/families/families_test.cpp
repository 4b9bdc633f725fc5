#include "troupe/checkpoint/hf/families/families.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "troupe/core/config/config.h"
#include "troupe/nn/config/presets.h"
#include "troupe/nn/model/model.h"

namespace troupe {
namespace {

// A published model cut down: its form, not its size.
ModelConfig small(const char* name) {
  ModelConfig c = preset(name);
  c.layers = c.first_dense + 2;
  c.width = 24;
  c.heads = 4;
  c.kv_heads = c.kv_heads > 0 ? 2 : 0;
  c.head_dim = c.head_dim > 0 ? 8 : 0;
  c.ffn = c.ffn > 0 ? 20 : 0;
  c.vocab = 37;
  if (c.mla) c.mla = MlaConfig{c.mla->q_rank > 0 ? 6 : 0, 10, 4, 4, 6, 1e-6};
  if (c.delta) c.delta = DeltaConfig{"[1,0]", 2, 4, 3, 5, 4};
  if (c.moe.experts > 0) {
    c.moe.experts = 8;
    c.moe.top_k = 4;
    c.moe.ffn.hidden = 12;
    if (auto* r = std::get_if<SigmoidBiasRouting>(&c.moe.router)) r->limit = {4, 2, 2};
  }
  return c;
}

const HfFamily& family(const char* model_type) {
  const HfFamily* const found = find_hf_family(model_type);
  if (found == nullptr) throw Error(std::string("no family ") + model_type);
  return *found;
}

struct Published {
  const char* family;
  const char* preset;
};
const Published kModels[] = {
    {"llama", "llama-3-8b"},
    {"llama", "llama-3.2-1b"},
    {"mixtral", "mixtral-8x7b"},
    {"qwen3_moe", "qwen3-30b-a3b"},
    {"qwen3_next", "qwen3-next-80b-a3b"},
    {"olmoe", "olmoe-1b-7b"},
    {"dbrx", "dbrx"},
    {"deepseek_v2", "deepseek-v2-lite"},
    {"deepseek_v3", "deepseek-v3"},
    {"gpt_oss", "gpt-oss-20b"},
};

TEST(HfNames, NameEachElementOfOursAndOfTheirsExactlyOnce) {
  for (const Published& m : kModels) {
    for (const bool fused : {false, true}) {
      const ModelConfig config = small(m.preset);
      std::map<std::string, std::vector<int>> theirs;
      for (const HfTensor& t : hf_names(family(m.family), config, fused)) {
        int64_t row = 0;
        for (const HfPiece& p : t.pieces) {
          ASSERT_EQ(p.row, row) << t.name;
          row += p.rows;
          const int64_t size =
              std::accumulate(p.shape.begin(), p.shape.end(), int64_t{1}, std::multiplies<>());
          std::vector<int>& seen = theirs[p.name];
          seen.resize(size);
          for (int64_t r = 0; r < p.rows; ++r) {
            for (int64_t c = 0; c < t.columns; ++c) {
              ++seen.at(p.offset + r * p.row_stride + c * p.column_stride);
            }
          }
        }
        EXPECT_EQ(row, t.rows) << t.name;
      }
      for (const auto& [name, seen] : theirs) {
        EXPECT_EQ(std::count(seen.begin(), seen.end(), 1), static_cast<int64_t>(seen.size()))
            << name;
      }
    }
  }
}

TEST(HfNames, HoldAllParametersOfTheModelWithTheirShapes) {
  for (const Published& m : kModels) {
    const ModelConfig config = small(m.preset);
    std::map<std::string, std::vector<int64_t>> ours;
    build_model(config)->for_each_param(-1, [&](const std::string& name, Param& p) {
      if (name.find(".balance.") != std::string::npos) return;  // a step's counts, no weight
      if (!p.per_expert) {
        ours[name] = p.global;
        return;
      }
      for (const int64_t e : p.experts) {
        ours[expert_name(name, e)] = {p.global.begin() + 1, p.global.end()};
      }
    });
    for (const HfTensor& t : hf_names(family(m.family), config)) {
      ASSERT_EQ(ours.count(t.name), 1) << m.preset << ' ' << t.name;
      EXPECT_EQ(ours.at(t.name), t.shape) << t.name;
      ours.erase(t.name);
    }
    for (const auto& [name, shape] : ours) ADD_FAILURE() << m.preset << " lacks " << name;
  }
}

TEST(HfNames, TheFamilyOfAConfigIsFoundByItsForm) {
  for (const Published& m : kModels) {
    EXPECT_EQ(hf_family_of(small(m.preset)), &family(m.family)) << m.preset;
  }
  EXPECT_EQ(hf_family_of(preset("megablocks-46m")), &family("gpt2"));
  ModelConfig parallel = small("mixtral-8x7b");
  parallel.block = ParallelBlock();
  EXPECT_EQ(hf_family_of(parallel), nullptr);
}

TEST(HfNames, ASharedExpertOfAnyWidthIsNoMultipleOfTheRoutedOnes) {
  ModelConfig c = small("deepseek-v3");
  c.moe.shared.hidden = c.moe.shared.experts * c.moe.ffn.hidden;
  EXPECT_EQ(hf_family_of(c), &family("deepseek_v3"));
  c.moe.shared.hidden += 8;
  EXPECT_EQ(hf_family_of(c), nullptr);
}

TEST(HfNames, AMisfitIsRefusedByItsKey) {
  const auto fault = [](const char* model_type, const ModelConfig& c) {
    try {
      hf_names(family(model_type), c);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(fault("mixtral", small("qwen3-30b-a3b")).find("model.qk_norm"), std::string::npos);
  EXPECT_NE(fault("llama", small("mixtral-8x7b")).find("model.moe.layers"), std::string::npos);
  ModelConfig c = small("gpt-oss-20b");
  c.sinks = false;
  EXPECT_NE(fault("gpt_oss", c).find("model.sinks"), std::string::npos);
  c = small("mixtral-8x7b");
  EXPECT_EQ(fault("mixtral", c), "");
  c.block = ParallelBlock();
  EXPECT_NE(fault("mixtral", c).find("model.block.kind"), std::string::npos);
}

TEST(HfNames, WhatNeedsNoImportIsKnown) {
  ModelConfig c = small("deepseek-v3");
  const std::string mtp = "model.layers." + std::to_string(c.layers) + ".enorm.weight";
  EXPECT_FALSE(hf_skippable(family("deepseek_v3"), c, mtp));
  c.mtp.depth = 0;
  EXPECT_TRUE(hf_skippable(family("deepseek_v3"), c, mtp));
  EXPECT_FALSE(hf_skippable(family("deepseek_v3"), c, "model.layers.0.input_layernorm.weight"));
  EXPECT_TRUE(hf_skippable(family("llama"), c, "model.layers.0.self_attn.rotary_emb.inv_freq"));
  c.tie_embeddings = true;
  EXPECT_TRUE(hf_skippable(family("llama"), c, "lm_head.weight"));
}

TEST(HfNames, DeepseeksMtpLayerRepeatsTheEmbeddingAndTheHead) {
  for (const HfTensor& t : hf_names(family("deepseek_v3"), small("deepseek-v3"))) {
    const size_t copies = t.name == "embed.tokens" || t.name == "head.weight" ? 1 : 0;
    EXPECT_EQ(t.copies.size(), copies) << t.name;
  }
}

}  // namespace
}  // namespace troupe
