// Readers that need no PyTorch, and so under the sanitizers of the preset asan too. `./dev fuzz`
// goes on from here.
#include "tests/fuzz/replay.h"

namespace troupe::replay {
namespace {

class Replay : public ::testing::TestWithParam<Target> {};

TEST_P(Replay, F143_SeedsAndWhatDamageMakesOfThemAreReadOrRefused) {
  replay(GetParam(), 2000);
}

INSTANTIATE_TEST_SUITE_P(All, Replay, ::testing::ValuesIn(kTargets),
                         [](const auto& target) { return std::string(target.param.name); });

}  // namespace
}  // namespace troupe::replay
