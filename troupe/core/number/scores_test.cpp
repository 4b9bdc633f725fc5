#include "troupe/core/number/scores.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

double softplus(double z) {
  return std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z)));
}

TEST(Scores, AreTheFormulasToTheLastDigits) {
  for (double z = -600; z <= 600; z += 0.37) {
    const double sigmoid = z < 0 ? std::exp(z) / (1 + std::exp(z)) : 1 / (1 + std::exp(-z));
    EXPECT_NEAR(scores::score_of(Score::kSigmoid, z) / sigmoid, 1, 1e-15) << z;
    const double root = std::sqrt(softplus(z));
    EXPECT_NEAR(scores::score_of(Score::kSqrtSoftplus, z) / root, 1, 1e-15) << z;
  }
  for (double x = -700; x <= 0; x += 0.31) {
    EXPECT_NEAR(scores::exp_negative(x) / std::exp(x), 1, 5e-16) << x;
  }
  EXPECT_EQ(scores::exp_negative(0), 1);
}

TEST(Scores, SlopesAreTheDerivatives) {
  for (const Score score : {Score::kSigmoid, Score::kSqrtSoftplus}) {
    for (double z = -30; z <= 30; z += 0.7) {
      const double step = 1e-5;
      const double want =
          (scores::score_of(score, z + step) - scores::score_of(score, z - step)) / (2 * step);
      EXPECT_NEAR(scores::slope_of(score, z).ds, want, 1e-9) << z;
      EXPECT_EQ(scores::slope_of(score, z).s, scores::score_of(score, z));
    }
  }
}

TEST(Scores, E14_EndsAreFinite) {
  for (const Score score : {Score::kSigmoid, Score::kSqrtSoftplus}) {
    for (const double z : {-1e4, -1e30, -double{INFINITY}}) {
      EXPECT_EQ(static_cast<float>(scores::score_of(score, z)), 0);
      EXPECT_NEAR(scores::slope_of(score, z).ds, 0, 1e-30);
    }
    EXPECT_TRUE(std::isnan(scores::score_of(score, NAN)));
  }
  EXPECT_EQ(scores::score_of(Score::kSigmoid, 1e4), 1);
  EXPECT_NEAR(scores::score_of(Score::kSqrtSoftplus, 1e4), 100, 1e-12);
}

}  // namespace
}  // namespace troupe
