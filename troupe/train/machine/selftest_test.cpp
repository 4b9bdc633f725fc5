#include "troupe/train/machine/selftest.h"

#include <gtest/gtest.h>

#include <limits>

namespace troupe {
namespace {

TEST(SelfTest, AllChecksHoldOnTheCpu) {
  int reported = 0;
  const auto checks = selftest({c10::kCPU}, [&](const SelfCheck&) { ++reported; });
  EXPECT_EQ(reported, 7);
  for (const SelfCheck& check : checks) {
    EXPECT_TRUE(check.ok()) << check.name << ": " << check.error << " > " << check.limit;
  }
}

TEST(SelfTest, ADifferenceOrNoNumberFails) {
  EXPECT_FALSE((SelfCheck{.name = "x", .error = 2e-4, .limit = 1e-4}.ok()));
  EXPECT_FALSE(
      (SelfCheck{.name = "x", .error = std::numeric_limits<double>::quiet_NaN(), .limit = 1}.ok()));
  EXPECT_TRUE((SelfCheck{.name = "x", .error = 0, .limit = 0}.ok()));
}

}  // namespace
}  // namespace troupe
