#include "troupe/core/number/split_f32.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace troupe {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float bf16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}

// Every upper half with low halves around a tie, at both ends and between.
template <class F>
void for_each_float(F&& f) {
  constexpr uint32_t kLows[] = {0,      1,      2,      0x1234, 0x4000, 0x7ffe, 0x7fff,
                                0x8000, 0x8001, 0xabcd, 0xc000, 0xfffe, 0xffff};
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t low : kLows) f(std::bit_cast<float>((upper << 16) | low));
  }
}

TEST(SplitF32, JoinGivesBackEveryNumberToTheBit) {
  int64_t numbers = 0;
  for_each_float([&](float f) {
    const SplitF32 s = split_f32(f);
    const float back = join_f32(s.value, s.low);
    if (std::isnan(f)) {
      EXPECT_TRUE(std::isnan(back) && std::isnan(bf16(s.value))) << std::bit_cast<uint32_t>(f);
      EXPECT_EQ(std::signbit(back), std::signbit(f));
      return;
    }
    ++numbers;
    ASSERT_EQ(std::bit_cast<uint32_t>(back), std::bit_cast<uint32_t>(f));
  });
  EXPECT_EQ(numbers, 2 * (0x7f80 * 13 + 1));
}

// The nearest bf16, by the definition in double: no neighbor is nearer, and a tie goes outwards.
TEST(SplitF32, TheValueIsTheNearestAndATieGoesAwayFromZero) {
  for_each_float([&](float f) {
    if (!std::isfinite(f)) return;
    const uint16_t value = split_f32(f).value;
    const auto toward = static_cast<uint16_t>(std::bit_cast<uint32_t>(f) >> 16);
    const auto away = static_cast<uint16_t>(toward + 1);  // where infinite: 2^128, as is usual
    const double outer = std::isinf(bf16(away)) ? std::copysign(0x1p128, double{f}) : bf16(away);
    const double in = std::abs(double{f} - bf16(toward)), out = std::abs(outer - double{f});
    ASSERT_EQ(value, out <= in ? away : toward) << f;
    // As BF16 rounds, except for ties.
    if (in != out) {
      ASSERT_EQ(value, BF16(f).bits) << f;
    }
  });
}

TEST(SplitF32, EdgesStayWhatTheyAre) {
  for (const float f : {0.0f, -0.0f, 1.0f, -2.5f, kInfinity, -kInfinity}) {
    const SplitF32 s = split_f32(f);
    EXPECT_EQ(s.low, 0);
    EXPECT_EQ(std::bit_cast<uint32_t>(bf16(s.value)), std::bit_cast<uint32_t>(f));
  }
  const float largest = std::numeric_limits<float>::max();
  const SplitF32 s = split_f32(-largest);
  EXPECT_EQ(bf16(s.value), -kInfinity);
  EXPECT_EQ(join_f32(s.value, s.low), -largest);
  EXPECT_EQ(split_f32(1.0f + 0x1p-8f).value, BF16(1.0f + 0x1p-7f).bits);  // BF16 gives 1
}

TEST(SplitF32, ABf16AloneIsItsValue) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float f = join_f32(static_cast<uint16_t>(bits), 0);
    ASSERT_EQ(std::bit_cast<uint32_t>(f), bits << 16);
  }
}

TEST(SplitF32, RunsAreTheirElements) {
  std::vector<float> from;
  for_each_float([&](float f) {
    if (!std::isnan(f)) from.push_back(f);
  });
  std::vector<BF16> value(from.size());
  std::vector<uint16_t> low(from.size());
  std::vector<float> back(from.size());
  split_f32(from, value.data(), low.data());
  join_f32(value.data(), low.data(), back);
  for (size_t i = 0; i < from.size(); ++i) {
    ASSERT_EQ(value[i].bits, split_f32(from[i]).value);
    ASSERT_EQ(std::bit_cast<uint32_t>(back[i]), std::bit_cast<uint32_t>(from[i]));
  }
}

}  // namespace
}  // namespace troupe
