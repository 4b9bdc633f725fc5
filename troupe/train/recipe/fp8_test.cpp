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

TEST(Fp8Config, RefusesWhatItCannotComputeAndSaysWhatWouldDo) {
  EXPECT_EQ(fault({}, model_of(128, 128)), "");
  EXPECT_NE(fault({}, model_of(64, 128)).find("64"), std::string::npos);
  EXPECT_NE(fault({}, model_of(128, 96)).find("at least 128"), std::string::npos);
  EXPECT_NE(fault({.skip_first = 3, .skip_last = 2}, model_of(128, 128)).find("leave none"),
            std::string::npos);
  EXPECT_NE(fault({.skip_first = 4}, model_of(128, 128)).find("no MoE layer"), std::string::npos);
  EXPECT_NE(fault({.skip_last = -1}, model_of(128, 128)).find("negative"), std::string::npos);
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
  m.kv_heads = 1;
  m.head_dim = 64;
  EXPECT_NE(fault({.attention = true}, m).find("a side of 64"), std::string::npos);
  m.mla.emplace();
  EXPECT_NE(fault({.attention = true}, m).find("model.mla"), std::string::npos);
}

}  // namespace
}  // namespace troupe
