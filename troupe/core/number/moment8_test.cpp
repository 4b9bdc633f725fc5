#include "troupe/core/number/moment8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace troupe {
namespace {

uint32_t bits(float x) {
  return std::bit_cast<uint32_t>(x);
}

// A block of numbers, coded and read back.
struct Block {
  explicit Block(const std::vector<float>& x, bool second, bool dithered = false) {
    uint32_t largest = 0;
    for (const float v : x) largest = std::max(largest, bits(v) & 0x7fffffffu);
    scale = moment_scale(largest);
    for (const float v : x) {
      const MomentDither d = moment_dither(v, v);
      const uint32_t dither = !dithered ? kToNearest : second ? d.second : d.first;
      codes.push_back(second ? second_moment_code(v, moment_inverse(scale), dither)
                             : first_moment_code(v, moment_inverse(scale), dither));
      back.push_back(second ? second_moment(codes.back(), scale)
                            : first_moment(codes.back(), scale));
    }
  }
  float scale = 0;
  std::vector<uint8_t> codes;
  std::vector<float> back;
};

// Sizes of many powers of two below the largest.
std::vector<float> numbers(unsigned seed, double octaves, bool second, float size = 1) {
  std::mt19937 rng(seed);
  std::uniform_real_distribution<double> power(-octaves, 0);
  std::vector<float> out;
  for (int64_t i = 0; i < kMomentBlock; ++i) {
    const auto x = static_cast<float>(std::exp2(power(rng))) * size;
    out.push_back(!second && rng() % 2 == 0 ? -x : x);
  }
  return out;
}

TEST(Moment8, TheErrorIsASixteenthOrWithDitherAnEighth) {
  for (const bool second : {false, true}) {
    for (const bool dithered : {false, true}) {
      for (const float size : {1.0f, 3e-20f, 5e15f, 0.7f}) {
        for (unsigned seed = 0; seed < 50; ++seed) {
          const auto x = numbers(seed, second ? 30 : 14, second, size);
          const Block b(x, second, dithered);
          for (size_t i = 0; i < x.size(); ++i) {
            const double bound = (dithered ? 1.0 / 8 : 1.0 / 16) * std::abs(double{x[i]});
            ASSERT_LE(std::abs(double{b.back[i]} - x[i]), bound) << x[i] << ' ' << b.scale;
          }
        }
      }
    }
  }
}

TEST(Moment8, WhatWasReadBackIsStoredAgainToTheBit) {
  for (const bool second : {false, true}) {
    for (unsigned seed = 0; seed < 200; ++seed) {
      const Block once(numbers(seed, second ? 40 : 20, second, 0.37f), second, true);
      const Block twice(once.back, second), third(twice.back, second);
      for (size_t i = 0; i < once.back.size(); ++i) {
        ASSERT_EQ(bits(once.back[i]), bits(twice.back[i]));
      }
      EXPECT_EQ(twice.codes, third.codes);
    }
  }
}

// The mean of many dithered roundings is the number, where rounding to nearest is off.
TEST(Moment8, DitherLosesNothingInTheMean) {
  std::mt19937 rng(1);
  std::uniform_real_distribution<float> near(0.99f, 1.01f);
  double sum = 0, back = 0, nearest = 0;
  for (int i = 0; i < 100000; ++i) {
    const float x = 0.535f * near(rng);  // codes: 0.5, 0.5625
    const MomentDither d = moment_dither(0.1f * near(rng), x);
    sum += x;
    back += second_moment(second_moment_code(x, 1, d.second), 1);
    nearest += second_moment(second_moment_code(x, 1, kToNearest), 1);
  }
  EXPECT_NEAR(back / sum, 1, 1e-3);
  EXPECT_GT(std::abs(nearest / sum - 1), 1e-2);
}

TEST(Moment8, EdgesAreWhatTheyAre) {
  std::vector<float> x(10, 0.0f);
  EXPECT_EQ(Block(x, false).scale, 0);
  EXPECT_EQ(Block(x, true).back, x);
  x[3] = 1, x[4] = 0x1p-40f;
  EXPECT_EQ(Block(x, false).back[4], 0);
  EXPECT_GT(Block(x, true).back[4], 0);  // it divides
  EXPECT_EQ(Block(x, true).back[3], 1);
  EXPECT_EQ(Block(x, true).back[0], 0);
  const std::vector<float> small(3, 1e-41f);  // subnormal
  EXPECT_GT(Block(small, true).back[0], 0);
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(), 0x1.8p126f}) {
    x[7] = bad;
    for (const float back : Block(x, false).back) EXPECT_TRUE(std::isnan(back));
    for (const float back : Block(x, true, true).back) EXPECT_TRUE(std::isnan(back));
  }
}

}  // namespace
}  // namespace troupe
