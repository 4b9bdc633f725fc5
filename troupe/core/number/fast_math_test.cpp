#include "troupe/core/number/fast_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

namespace troupe::fast {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// The distance between neighboring floats at the value that was to be found.
double ulp(double want) {
  const int exponent = std::max(std::ilogb(want), -126);
  return std::ldexp(1.0, exponent - 23);
}

// Every 61st float from -105 to 90, signs and subnormals included, in blocks, so that the loop
// under test is the vector loop.
template <class F>
void for_floats(float from, F&& f) {
  std::vector<float> x, y;
  for (uint32_t bits = 0; std::bit_cast<float>(bits) <= std::abs(from); bits += 61) {
    x.push_back(std::copysign(std::bit_cast<float>(bits), from));
    if (x.size() == 4096) f(x), x.clear();
  }
  f(x);
}

double worst_exp_error(float from) {
  double worst = 0;
  std::vector<float> y(4096);
  for_floats(from, [&](const std::vector<float>& x) {
    for (size_t i = 0; i < x.size(); ++i) y[i] = exp(x[i]);
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = std::exp(double{x[i]});
      if (want <= std::numeric_limits<float>::max()) {
        worst = std::max(worst, std::abs(y[i] - want) / ulp(want));
      } else {
        ASSERT_GE(y[i], std::numeric_limits<float>::max()) << "exp of " << x[i];
      }
    }
  });
  return worst;
}

TEST(FastMath, ExpIsWithinTwoUlpOverTheWholeRange) {
  EXPECT_LT(worst_exp_error(-105), 2);
  EXPECT_LT(worst_exp_error(90), 2);
}

TEST(FastMath, ExpOfTheEnds) {
  EXPECT_EQ(exp(0.0f), 1.0f);
  EXPECT_EQ(exp(-0.0f), 1.0f);
  EXPECT_EQ(exp(kInf), kInf);
  EXPECT_EQ(exp(-kInf), 0.0f);
  EXPECT_EQ(exp(std::numeric_limits<float>::max()), kInf);
  EXPECT_EQ(exp(std::numeric_limits<float>::lowest()), 0.0f);
  EXPECT_TRUE(std::isnan(exp(std::numeric_limits<float>::quiet_NaN())));
}

TEST(FastMath, SigmoidKeepsBothTails) {
  for (float x = -87; x <= 87; x += 0.0137f) {
    const double p = 1 / (1 + std::exp(-double{x})), q = 1 / (1 + std::exp(double{x}));
    ASSERT_NEAR(sigmoid(x).p, p, 4e-7 * p) << "at " << x;
    ASSERT_NEAR(sigmoid(x).q, q, 4e-7 * q) << "at " << x;
  }
  EXPECT_EQ(sigmoid(kInf).p, 1);
  EXPECT_EQ(sigmoid(-kInf).p, 0);
  EXPECT_TRUE(std::isnan(sigmoid(std::numeric_limits<float>::quiet_NaN()).p));
}

TEST(FastMath, NormalKeepsItsTail) {
  for (float x = -12.5f; x <= 12.5f; x += 0.00137f) {
    const Normal<double> want = normal(double{x});
    ASSERT_NEAR(normal(x).cdf, want.cdf, 8e-7 * want.cdf) << "at " << x;
    ASSERT_NEAR(normal(x).density, want.density, 8e-7 * want.density) << "at " << x;
  }
  for (const float x : {std::numeric_limits<float>::max(), kInf}) {
    EXPECT_EQ(normal(x).cdf, 1);
    EXPECT_EQ(normal(-x).cdf, 0);
    EXPECT_EQ(normal(x).density, 0);
  }
  EXPECT_TRUE(std::isnan(normal(std::numeric_limits<float>::quiet_NaN()).cdf));
}

}  // namespace
}  // namespace troupe::fast
