#include "troupe/train/observe/expert_use.h"

#include <gtest/gtest.h>

#include <cmath>

namespace troupe {
namespace {

TEST(ExpertUse, InformationIsThatOfItsFormula) {
  EXPECT_DOUBLE_EQ(information_bits({{5, 0}, {0, 5}}), 1);    // the expert names the source
  EXPECT_DOUBLE_EQ(information_bits({{5, 5}, {20, 20}}), 0);  // it says nothing
  EXPECT_DOUBLE_EQ(information_bits({{4, 0, 0, 0}, {0, 4, 0, 0}, {0, 0, 4, 0}, {0, 0, 0, 4}}), 2);
  EXPECT_DOUBLE_EQ(information_bits({{3, 9}}), 0);  // one source
  EXPECT_DOUBLE_EQ(information_bits({}), 0);
  EXPECT_DOUBLE_EQ(information_bits({{0, 0}, {0, 0}}), 0);
  // H(expert) - H(expert | source) of a quarter and three quarters, twice.
  const double quarter = -0.25 * std::log2(0.25) - 0.75 * std::log2(0.75);
  EXPECT_NEAR(information_bits({{1, 3}, {3, 1}}), 1 - quarter, 1e-12);
}

}  // namespace
}  // namespace troupe
