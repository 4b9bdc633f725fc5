#include "troupe/nn/config/presets.h"

#include <gtest/gtest.h>

#include <sstream>

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/nn/config/costs.h"

namespace troupe {
namespace {

struct Published {
  const char* name;
  int64_t total, active;  // as published; 0: not said
  int64_t biases = 0;     // balancing biases: parameters there, state here
};

TEST(Presets, N1_ParameterCountsAreThePublishedIntegers) {
  for (const Published& p : {
           Published{"llama-2-7b", 6738415616, 6738415616},
           Published{"llama-2-13b", 13015864320, 13015864320},
           Published{"llama-2-70b", 68976648192, 68976648192},
           Published{"llama-3-8b", 8030261248, 8030261248},
           Published{"llama-3-70b", 70553706496, 70553706496},
           Published{"llama-3.2-1b", 1235814400, 1235814400},
           Published{"mixtral-8x7b", 46702792704, 12879925248},
           Published{"mixtral-8x22b", 140630071296, 0},
           Published{"olmoe-1b-7b", 6919161856, 1282017280},
           Published{"qwen3-30b-a3b", 30532122624, 3353032704},
           Published{"qwen3-next-80b-a3b", 79674391296, 3874929408},
           Published{"qwen3-235b-a22b", 235093634560, 22190763520},
           Published{"dbrx", 131596523520, 36469708800},
           Published{"deepseek-v2-lite", 15706484224, 0},
           Published{"deepseek-v3", 671026419200, 37552297472, 58 * 256},
           Published{"gpt-oss-20b", 20914757184, 4187440704},
           Published{"gpt-oss-120b", 116829156672, 0},
       }) {
    const ModelCosts costs = costs_of(preset(p.name));
    EXPECT_EQ(costs.params() + p.biases, p.total) << p.name;
    if (p.active > 0) {
      EXPECT_EQ(costs.active_params() + p.biases, p.active) << p.name;
    }
  }
}

TEST(Presets, N1_TheMtpModuleOfDeepseekV3IsCountedApart) {
  const ModelCosts costs = costs_of(preset("deepseek-v3"));
  EXPECT_EQ(costs.mtp_params + 256, 11610068224);
}

// LLM-Foundry's scripts/eval/yamls/dbrx-gauntlet; a name is the number of parameters, cut off.
TEST(Presets, N1_TheSmallerDbrxModelsHaveTheSizesOfTheirNames) {
  for (const int64_t billions : {9, 18, 35, 73}) {
    const std::string name = "dbrx-" + std::to_string(billions) + 'b';
    EXPECT_EQ(costs_of(preset(name)).params() / 1'000'000'000, billions) << name;
  }
}

TEST(Presets, N1_MegaBlocksModelsAreThePapers) {
  const auto millions = [](const char* name) {
    return static_cast<double>(costs_of(preset(name)).params()) / 1e6;
  };
  EXPECT_NEAR(millions("megablocks-dmoe-46m"), 838.56, 0.005);
  EXPECT_NEAR(millions("megablocks-dmoe-125m"), 3692.97, 0.005);
  EXPECT_NEAR(millions("megablocks-dmoe-356m"), 13040.84, 0.005);
  EXPECT_NEAR(millions("megablocks-46m"), 45.7, 0.05);
  EXPECT_NEAR(millions("megablocks-moe-46m"), 838.56, 0.005);
}

// 72 s L h^2 (1 + s / (6 h) + V / (12 L h)), the paper's figures in GFLOP a sequence.
TEST(Presets, N2_MegaBlocksFlopsAreThePapers) {
  const auto gflop = [](const char* name) {
    return costs_of(preset(name)).flops_per_token(1024, /*full=*/true) * 1024 / 1e9;
  };
  EXPECT_NEAR(gflop("megablocks-46m"), 316, 0.5);
  EXPECT_NEAR(gflop("megablocks-125m"), 879, 0.5);
  EXPECT_NEAR(gflop("megablocks-356m"), 2487, 0.5);
  EXPECT_NEAR(gflop("megablocks-760m"), 5122, 0.5);
  EXPECT_NEAR(gflop("megablocks-1.3b"), 8684, 0.5);
}

TEST(Presets, N2_FlopsPerTokenAreThoseOfTheFormula) {
  const ModelCosts qwen = costs_of(preset("qwen3-30b-a3b"));
  EXPECT_EQ(qwen.product_params(), 3041656832);
  EXPECT_EQ(qwen.flops_per_token(8192), 27913617408.0);
  EXPECT_EQ(qwen.flops_per_token(8192, /*full=*/true), 37577293824.0);
  const auto at_4096 = [](const char* name) {
    return costs_of(preset(name)).flops_per_token(4096);
  };
  EXPECT_NEAR(at_4096("mixtral-8x7b"), 7.971e10, 5e6);
  EXPECT_NEAR(at_4096("qwen3-30b-a3b"), 2.308e10, 5e6);
  EXPECT_NEAR(at_4096("olmoe-1b-7b"), 7.878e9, 5e5);
  EXPECT_NEAR(at_4096("dbrx"), 2.212e11, 5e7);
  EXPECT_NEAR(at_4096("llama-3-8b"), 4.825e10, 5e6);
}

TEST(Presets, AWindowBoundsTheKeysOfItsLayersAlone) {
  const ModelConfig config = preset("gpt-oss-20b");
  EXPECT_EQ(layer_config(config, 0).window, 128);
  EXPECT_EQ(layer_config(config, 1).window, 0);
  const ModelCosts costs = costs_of(config);
  const double core = 6.0 * 64 * 128;
  EXPECT_EQ(costs.flops_per_token(4096) - costs.flops_per_token(256), 12 * core * (2048 - 128));
}

TEST(Presets, EachOneIsAConfigWithoutFaults) {
  for (const std::string_view name : ModelConfig::presets()) {
    EXPECT_NO_THROW(validate(preset(name))) << name;
  }
}

TEST(Presets, NoneButTheDroppingOnesHasACapacityFactor) {
  for (const std::string_view name : ModelConfig::presets()) {
    const bool dropping = name.find("megablocks-moe") == 0;
    EXPECT_EQ(preset(name).moe.capacity.factor > 0, dropping) << name;
  }
}

TEST(Presets, APresetIsReadFirstAndPrintsAsARecipeOfTheSameModel) {
  ModelConfig config;
  read_config(parse_yaml("{layers: 4, preset: mixtral-8x7b}", "x.yaml"), config);
  EXPECT_EQ(config.layers, 4);
  EXPECT_EQ(config.width, 4096);
  EXPECT_EQ(config.moe.ffn.hidden, 14336);
  std::ostringstream printed;
  print_config(printed, config);
  ModelConfig again;
  read_config(parse_yaml(printed.str(), "y.yaml"), again);
  EXPECT_TRUE(same(config, again));
}

TEST(Presets, AnUnknownNameIsRefusedWithTheNearest) {
  ModelConfig config;
  try {
    read_config(parse_yaml("preset: mixtral-8x7", "x.yaml"), config);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(std::string(e.what()),
              "x.yaml:1: E2004 no preset \"mixtral-8x7\" in the recipe; did you mean "
              "\"mixtral-8x7b\"?");
  }
  EXPECT_THROW(preset("gpt-5"), Error);
}

}  // namespace
}  // namespace troupe
