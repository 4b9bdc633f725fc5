#include "troupe/distributed/world/start_needs.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

TEST(StartNeeds, ARankNeedsNoMoreFilesOfThousandsThanOfAHundred) {
  EXPECT_EQ(start_needs(1).files, kOwnFiles);
  EXPECT_EQ(start_needs(1).store_bytes, 0);
  EXPECT_EQ(start_needs(8).files, kOwnFiles + 2 + 7);
  EXPECT_EQ(start_needs(100).files, start_needs(10'000).files);
  EXPECT_LT(start_needs(3072).files, 300);
  EXPECT_EQ(start_needs(3072).files_of_first, start_needs(3072).files + 2 * 3072);
  EXPECT_LT(start_needs(3072).ports, 40);
  EXPECT_LT(start_needs(3072).store_bytes, int64_t{64} << 20);
}

TEST(StartNeeds, TheMostRanksAreThoseThatStillHaveEnough) {
  for (const int64_t files : {100, 256, 300, 400, 1024, 4096, 65536}) {
    const int64_t most = most_ranks_with(files);
    if (most > 0) {
      EXPECT_LE(start_needs(most).files_of_first, files) << files;
    }
    EXPECT_GT(start_needs(most + 1).files_of_first, files) << files;
  }
  EXPECT_EQ(most_ranks_with(100), 0);
  EXPECT_LT(most_ranks_with(1024), 400);
  EXPECT_GT(most_ranks_with(65536), 3072);
}

}  // namespace
}  // namespace troupe
