#include "troupe/core/number/f16.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace troupe {
namespace {

F16 half(int bits) {
  F16 h;
  h.bits = static_cast<uint16_t>(bits);
  return h;
}

TEST(F16, AllBitPatternsSurviveTheWayThroughFloat) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const float wide = static_cast<float>(half(bits));
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(F16(wide)))) << bits;
    } else {
      EXPECT_EQ(F16(wide).bits, bits);
    }
  }
}

TEST(F16, RoundsToTheNearestNeighborTiesToEven) {
  for (int bits = 0; bits < 0x7bff; ++bits) {
    const float low = static_cast<float>(half(bits)), high = static_cast<float>(half(bits + 1));
    const float middle = low + (high - low) / 2;  // exact: one bit more than a half holds
    EXPECT_EQ(F16(middle).bits, bits + (bits & 1)) << bits;
    EXPECT_EQ(F16(std::nextafterf(middle, 0)).bits, bits) << bits;
    EXPECT_EQ(F16(std::nextafterf(-middle, -1e9f)).bits, (bits + 1) | 0x8000) << bits;
  }
}

TEST(F16, OverflowsToInfinityAtHalfALastPlaceAboveTheLargest) {
  EXPECT_EQ(static_cast<float>(F16(65519.99f)), 65504.0f);
  EXPECT_TRUE(std::isinf(static_cast<float>(F16(65520.0f))));
  EXPECT_TRUE(std::isinf(static_cast<float>(F16(std::numeric_limits<float>::infinity()))));
  EXPECT_EQ(static_cast<float>(half(1)), 0x1p-24f);
  EXPECT_EQ(static_cast<float>(half(0x3c00)), 1.0f);
}

}  // namespace
}  // namespace troupe
