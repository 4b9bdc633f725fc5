// For readers that need PyTorch: recipes, config.json, other trainers' files. They take longer.
#include "tests/fuzz/replay.h"

namespace troupe::replay {
namespace {

class Replay : public ::testing::TestWithParam<Target> {};

TEST_P(Replay, F143_SeedsAndWhatDamageMakesOfThemAreReadOrRefused) {
  replay(GetParam(), 200);
}

INSTANTIATE_TEST_SUITE_P(All, Replay, ::testing::ValuesIn(kTargets),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace troupe::replay
