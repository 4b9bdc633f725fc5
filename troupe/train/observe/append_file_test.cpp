#include "troupe/train/observe/append_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "troupe/core/file/file.h"
#include "troupe/testing/files.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

using testing::put_file;

TEST(AppendFile, F166_ALineThatAKillHasTornEndsBeforeTheNext) {
  const testing::TemporaryFolder folder;
  put_file(folder / "log.jsonl", "{\"step\":1}\n{\"step\":2,\"lo");
  AppendFile log(folder / "log.jsonl", Log(), AppendFile::Holds::kLines);
  EXPECT_TRUE(log.append("{\"step\":2}\n"));
  EXPECT_TRUE(log.append("{\"step\":3}\n"));
  EXPECT_EQ(read_file(folder / "log.jsonl"),
            "{\"step\":1}\n{\"step\":2,\"lo\n{\"step\":2}\n{\"step\":3}\n");
}

TEST(AppendFile, RecordsGetNoLineEnds) {
  const testing::TemporaryFolder folder;
  put_file(folder / "events", "torn");
  AppendFile events(folder / "events", Log(), AppendFile::Holds::kRecords);
  EXPECT_TRUE(events.append("next"));
  EXPECT_EQ(read_file(folder / "events"), "tornnext");
}

TEST(AppendFile, F166_APipeUnderItsNameBlocksNothing) {
  const testing::TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "log.jsonl").c_str(), 0600), 0);
  AppendFile log(folder / "log.jsonl", Log(), AppendFile::Holds::kLines);
  EXPECT_FALSE(log.append("a line\n"));
}

}  // namespace
}  // namespace troupe
