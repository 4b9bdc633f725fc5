#include "troupe/train/recipe/experts_kernels.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

ModelConfig model_of(int64_t width, int64_t hidden) {
  ModelConfig m;
  m.layers = 2;
  m.width = width;
  m.heads = 4;
  m.moe.experts = 8;
  m.moe.ffn.hidden = hidden;
  return m;
}

std::string experts_line(const ModelConfig& model, const GpuProducts& products) {
  return experts_kernels(model, products, 8192).line;
}

constexpr GpuProducts kHopper{.type = at::kBFloat16, .gpu = {90, true}};

TEST(ExpertsKernels, E8_SwiGluOfMultiplesOf64IsFusedOnHopper) {
  EXPECT_EQ(experts_line(model_of(2048, 1024), kHopper), "experts: fused kernels for Hopper");
  EXPECT_EQ(experts_line(model_of(64, 192), kHopper), "experts: fused kernels for Hopper");
}

TEST(ExpertsKernels, E8_WhatIsNotFusedIsSaidWithItsReason) {
  const auto has = [](const std::string& line, const std::string& part) {
    EXPECT_TRUE(line.starts_with("experts: grouped products")) << line;
    EXPECT_NE(line.find(part), std::string::npos) << line;
  };
  const ModelConfig plain = model_of(2048, 1024);
  has(experts_line(model_of(2048, 1000), kHopper), "widths 2048 and 1000 are not both multiples");
  has(experts_line(plain, {at::kHalf, {90, true}}), "not in bf16");
  has(experts_line(plain, {at::kBFloat16, {80}}),
      "compute capability is 80, not 90; tiles of sm_80");
  has(experts_line(plain, {at::kBFloat16, {87}}), "; tiles of sm_86");
  has(experts_line(plain, {at::kBFloat16, {90, false}}),
      "this build has no code for sm_90a that the driver would take; tiles of sm_90");
  // Slices of 1024 / 32 = 32 columns.
  has(experts_line(plain, {at::kBFloat16, {90, true}, 32}), "widths 2048 and 32");
  ModelConfig other = plain;
  other.moe.ffn.bias = true;
  has(experts_line(other, kHopper), "not plain SwiGLU");
  other = plain;
  other.moe.ffn.form.activation = "gelu";
  has(experts_line(other, kHopper), "not plain SwiGLU");
  other = plain;
  other.moe.latent = 96;
  has(experts_line(other, kHopper), "widths 96 and 1024");
}

TEST(ExpertsKernels, OtherWaysAreNamedAndNothingIsSaidWithoutAGpu) {
  ModelConfig m = model_of(2048, 1024);
  EXPECT_EQ(experts_line(m, {at::kBFloat16, {}}), "");
  m.moe.ffn.impl = ExpertsImpl::kLoop;
  EXPECT_EQ(experts_line(m, kHopper), "experts: loop (model.moe.impl)");
  m.moe.experts = 0;
  EXPECT_EQ(experts_line(m, kHopper), "");
}

TEST(ExpertsKernels, FusedKernelsAreListedWithTheirSumsAndTiles) {
  const auto fused = experts_kernels(model_of(2048, 1024), kHopper, 8192).fused;
  ASSERT_EQ(fused.size(), 6u);
  EXPECT_TRUE(fused[0].starts_with("up: sums of 2048; tiles of 128 x 256, ")) << fused[0];
  EXPECT_TRUE(fused[1].starts_with("down: sums of 1024; ")) << fused[1];
  // 8192 tokens of two choices, over 8 experts.
  EXPECT_TRUE(fused[5].starts_with("grad W1: sums of 2048; ")) << fused[5];
  EXPECT_TRUE(experts_kernels(model_of(2048, 1000), kHopper, 8192).fused.empty());
}

}  // namespace
}  // namespace troupe
