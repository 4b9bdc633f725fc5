#include "troupe/train/run/data_warnings.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

using Lines = std::vector<std::string>;

TEST(DataWarnings, OfOtherRanksAreThoseThatRankZeroLacks) {
  EXPECT_EQ(other_ranks_lines({{"a", "b"}, {"a"}, {"b", "a"}}), Lines{});
  EXPECT_EQ(other_ranks_lines({{}, {"a", "a"}, {"b"}, {"a"}}),
            (Lines{"a (ranks 1, 3)", "b (rank 2)"}));
  EXPECT_EQ(other_ranks_lines({{"a"}}), Lines{});
}

struct Said : LogSink {
  void write(Level, std::string_view line) override { lines.emplace_back(line); }
  Lines lines;
};

TEST(DataWarnings, OfOneRankComeAtOnceAndOnce) {
  const auto said = std::make_shared<Said>();
  const ParallelState alone;
  Log kept;
  {
    DataWarnings warnings(alone, Log({said}));
    kept = warnings.log();
    kept.warning("a");
    EXPECT_EQ(said->lines, Lines{"a"});
    warnings.gather();
  }
  kept.warning("b");  // a file that is still open
  EXPECT_EQ(said->lines, (Lines{"a", "b"}));
}

}  // namespace
}  // namespace troupe
