#include "troupe/core/number/bf16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace troupe {
namespace {

TEST(BF16, KeepsWhatItCanHold) {
  for (float v :
       {0.0f, -0.0f, 1.0f, -2.5f, 3.3895314e38f, std::numeric_limits<float>::infinity()}) {
    EXPECT_EQ(static_cast<float>(BF16(v)), v);
  }
}

TEST(BF16, RoundsHalfwayToEven) {
  EXPECT_EQ(static_cast<float>(BF16(1.0f + 0x1p-8f)), 1.0f);
  EXPECT_EQ(static_cast<float>(BF16(1.0f + 3 * 0x1p-8f)), 1.0f + 0x1p-6f);
  EXPECT_EQ(static_cast<float>(BF16(1.0f + 0x1p-8f + 0x1p-20f)), 1.0f + 0x1p-7f);
}

TEST(BF16, KeepsNan) {
  EXPECT_TRUE(std::isnan(static_cast<float>(BF16(std::nanf("")))));
  EXPECT_TRUE(std::isnan(static_cast<float>(BF16(std::bit_cast<float>(0x7fffffffu)))));
  EXPECT_TRUE(std::isnan(static_cast<float>(BF16(std::bit_cast<float>(0xff800001u)))));
}

}  // namespace
}  // namespace troupe
