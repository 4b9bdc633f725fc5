#include "troupe/nn/config/moe_pattern.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "troupe/core/check.h"

namespace troupe {
namespace {

TEST(MoePattern, L4_ListsGiveThreeDenseAnd21MoeLayers) {
  const auto is_moe = moe_layers("[0]*3+[1]*21", 24);
  EXPECT_EQ(std::count(is_moe.begin(), is_moe.end(), true), 21);
  EXPECT_FALSE(is_moe[2]);
  EXPECT_TRUE(is_moe[3]);
}

TEST(MoePattern, L4_AnIntegerMeansEveryNth) {
  EXPECT_EQ(moe_layers("2", 5), (std::vector<bool>{true, false, true, false, true}));
  EXPECT_EQ(moe_layers("1", 2), (std::vector<bool>{true, true}));
}

TEST(MoePattern, L4_ListsMayRepeatAndJoin) {
  EXPECT_EQ(moe_layers("[0, 1] * 2 + [1]", 5), (std::vector<bool>{false, true, false, true, true}));
}

TEST(MoePattern, RefusesWhatItCannotMeanAndShowsIt) {
  for (const char* bad : {"0", "-1", "[0]*3", "[0]*5", "[2]*4", "[0]*4+", "[0,]*4", "x",
                          "[1]*4 [1]", "[1]*99999999999999999999", ""}) {
    try {
      moe_layers(bad, 4);
      ADD_FAILURE() << bad;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("moe.layers"), std::string::npos) << e.what();
    }
  }
}

}  // namespace
}  // namespace troupe
