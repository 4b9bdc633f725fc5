#include "troupe/train/observe/profile.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "troupe/core/file/file.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

struct Lines : LogSink {
  void write(Level, std::string_view text) override { (all += text) += '\n'; }
  std::string all;
};

TEST(Profile, TimeInsideAnotherIsTheInnerOnesAlone) {
  const auto rows = profile_rows({{"step", 1, 0, 100},
                                  {"mm", 1, 10, 40},
                                  {"mm", 1, 50, 60},
                                  {"copy", 1, 15, 20},
                                  {"mm", 2, 0, 7}});
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[0].name, "step");
  EXPECT_EQ(rows[0].ns, 100 - 30 - 10);
  EXPECT_EQ(rows[1].name, "mm");
  EXPECT_EQ(rows[1].ns, 30 + 10 - 5 + 7);
  EXPECT_EQ(rows[1].calls, 3);
  EXPECT_EQ(rows[2].ns, 5);
}

TEST(Profile, LooksAtTheStepsAskedForAndLeavesATraceAndATable) {
  const testing::TemporaryFolder folder;
  const auto lines = std::make_shared<Lines>();
  Profile profile({.from = 2, .steps = 2, .top = 5}, folder.path(), Log({lines}), false);
  for (int64_t step = 1; step <= 5; ++step) {
    profile.begin(step);
    at::mm(at::ones({8, 8}), at::ones({8, 8}));
    profile.end(step);
  }
  EXPECT_NE(lines->all.find("profile of steps 2 to 3"), std::string::npos) << lines->all;
  EXPECT_NE(lines->all.find("1.0 calls  aten::mm"), std::string::npos) << lines->all;
  EXPECT_NE(read_file(folder / "profile-2.json").find("aten::mm"), std::string::npos);
}

TEST(Profile, WhatCannotBeIsSaid) {
  EXPECT_TRUE(profile_faults({}).empty());
  EXPECT_EQ(profile_faults({.from = -1, .steps = 0, .top = 0}).size(), 3u);
}

}  // namespace
}  // namespace troupe
