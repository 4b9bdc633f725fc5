#include "troupe/nn/parts/rope.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cmath>

#include "troupe/core/check.h"

namespace troupe {
namespace {

RopeConfig of_theta(double theta) {
  RopeConfig c;
  c.theta = theta;
  return c;
}

RopeConfig scaled(RopeScaling scaling, double factor, double theta = 10000) {
  RopeConfig c = of_theta(theta);
  c.scaling = scaling;
  c.factor = factor;
  return c;
}

TEST(Rope, PlainFrequenciesArePowersOfTheta) {
  const std::vector<double> f = rope_frequencies(of_theta(100), 4);
  ASSERT_EQ(f.size(), 2);
  EXPECT_DOUBLE_EQ(f[0], 1);
  EXPECT_DOUBLE_EQ(f[1], 0.1);
  EXPECT_DOUBLE_EQ(rope_frequencies(scaled(RopeScaling::kLinear, 4, 100), 4)[1], 0.025);
}

TEST(Rope, Llama3KeepsShortWavesAndDividesLongOnes) {
  RopeConfig c = scaled(RopeScaling::kLlama3, 8, 500000);
  c.original_positions = 8192;
  const std::vector<double> f = rope_frequencies(c, 128),
                            plain = rope_frequencies(of_theta(5e5), 128);
  EXPECT_DOUBLE_EQ(f[0], plain[0]);
  EXPECT_DOUBLE_EQ(f[63], plain[63] / 8);
  // Between: s = (L / w - low) / (high - low).
  const double s = (8192 * plain[32] / (2 * M_PI) - 1) / 3;
  ASSERT_TRUE(0 < s && s < 1);
  EXPECT_NEAR(f[32], plain[32] * ((1 - s) / 8 + s), 1e-15);
}

// Published values: DeepSeek's softmax factor at factor 40 and gpt-oss' amplitude at 32.
TEST(Rope, YarnsFactorsAreThePublishedOnes) {
  RopeConfig deepseek = scaled(RopeScaling::kYarn, 40);
  deepseek.mscale = deepseek.mscale_all_dim = 1;
  EXPECT_NEAR(rope_softmax_factor(deepseek), 1.8738542, 5e-8);
  EXPECT_NEAR(rope_softmax_factor(deepseek) / std::sqrt(192.0), 0.1352338, 5e-8);
  EXPECT_DOUBLE_EQ(rope_amplitude(deepseek), 1);
  const RopeConfig oss = scaled(RopeScaling::kYarn, 32);
  EXPECT_NEAR(rope_amplitude(oss), 1.3465736, 5e-8);
  EXPECT_DOUBLE_EQ(rope_softmax_factor(oss), 1);
  EXPECT_DOUBLE_EQ(rope_amplitude(RopeConfig()), 1);
}

TEST(Rope, YarnKeepsFastDimensionsAndDividesSlowOnes) {
  RopeConfig c = scaled(RopeScaling::kYarn, 32, 150000);
  c.truncate = false;
  const std::vector<double> f = rope_frequencies(c, 64),
                            plain = rope_frequencies(of_theta(150000), 64);
  EXPECT_DOUBLE_EQ(f[0], plain[0]);
  EXPECT_DOUBLE_EQ(f[31], plain[31] / 32);
  for (int j = 1; j < 32; ++j) EXPECT_LE(f[j] / plain[j], f[j - 1] / plain[j - 1] + 1e-15);
}

TEST(Rope, TablesGrowAndKeepTheirRows) {
  Rope rope(of_theta(100), 4);
  const at::Tensor f32 = at::empty({1}), f64 = at::empty({1}, at::kDouble);
  EXPECT_NEAR(rope.tables(3, f32).cos[2][1].item<double>(), std::cos(0.2), 1e-7);
  EXPECT_NEAR(rope.tables(300, f32).sin[299][1].item<double>(), std::sin(29.9), 1e-6);
  EXPECT_EQ(rope.tables(2, f64).cos.scalar_type(), at::kDouble);
  EXPECT_THROW(rope_frequencies({}, 3), Error);
}

}  // namespace
}  // namespace troupe
