#include "troupe/core/number/e4m3.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace troupe {
namespace {

// The definition, apart from the bits: (-1)^s 2^(e - 7) (1 + m / 8), or 2^-6 m / 8 where e = 0.
double meaning(int byte) {
  const int sign = byte >> 7, e = (byte >> 3) & 15, m = byte & 7;
  if (e == 15 && m == 7) return NAN;
  const double size = e == 0 ? std::ldexp(m, -9) : std::ldexp(8 + m, e - 10);
  return sign != 0 ? -size : size;
}

TEST(E4M3, ReadsAll256Bytes) {
  for (int b = 0; b < 256; ++b) {
    const double want = meaning(b);
    E4M3 x;
    x.bits = static_cast<uint8_t>(b);
    const auto got = static_cast<double>(static_cast<float>(x));
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << b;
    } else {
      EXPECT_EQ(got, want) << b;
      EXPECT_EQ(std::signbit(got), std::signbit(want)) << b;
    }
  }
}

// The nearest of the 127 sizes by trying all, the even byte of two that are as near.
int nearest(double size) {
  int best = 0;
  for (int b = 1; b < 0x7f; ++b) {
    const double d = std::abs(meaning(b) - size), least = std::abs(meaning(best) - size);
    if (d < least || (d == least && b % 2 == 0)) best = b;
  }
  return best;
}

TEST(E4M3, RoundsAllOfBF16ToTheNearest) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = std::bit_cast<float>(bits << 16);
    const int sign = std::signbit(x) ? 0x80 : 0;
    const int want = std::isnan(x) ? 0x7f | sign : nearest(std::abs(x)) | sign;
    ASSERT_EQ(int{E4M3(x).bits}, want) << x;
  }
}

TEST(E4M3, TiesGoToEvenAndTheirNeighborsToTheirOwnSide) {
  for (int b = 0; b < 0x7e; ++b) {
    const auto tie = static_cast<float>((meaning(b) + meaning(b + 1)) / 2);
    EXPECT_EQ(int{E4M3(tie).bits}, b % 2 == 0 ? b : b + 1) << tie;
    EXPECT_EQ(int{E4M3(std::nextafter(tie, 0.0f)).bits}, b) << tie;
    EXPECT_EQ(int{E4M3(std::nextafter(tie, 1e9f)).bits}, b + 1) << tie;
  }
}

TEST(E4M3, SaturatesAt448) {
  for (const float x : {448.0f, 463.9f, 464.0f, 480.0f, 1e30f, INFINITY}) {
    EXPECT_EQ(int{E4M3(x).bits}, 0x7e) << x;
    EXPECT_EQ(int{E4M3(-x).bits}, 0xfe) << x;
  }
}

}  // namespace
}  // namespace troupe
