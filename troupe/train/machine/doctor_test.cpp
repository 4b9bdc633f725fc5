#include "troupe/train/machine/doctor.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

TEST(Doctor, NumbersAreJudgedAndEachFaultHasACure) {
  EXPECT_EQ(judge_disk(".", 100 * kGiB).verdict, Finding::kOk);
  EXPECT_EQ(judge_disk(".", 5 * kGiB).verdict, Finding::kWarn);
  EXPECT_EQ(judge_disk(".", 1000).verdict, Finding::kFail);
  EXPECT_EQ(judge_disk("nowhere", -1).verdict, Finding::kFail);
  EXPECT_EQ(judge_shared_memory(64 << 20).verdict, Finding::kWarn);
  EXPECT_EQ(judge_shared_memory(8 * kGiB).verdict, Finding::kOk);
  EXPECT_EQ(judge_host_memory(64 * kGiB, kGiB).verdict, Finding::kWarn);
  EXPECT_EQ(judge_open_files(256).verdict, Finding::kWarn);
  EXPECT_EQ(judge_open_files(-1).verdict, Finding::kOk);
  EXPECT_EQ(judge_locked_memory(65536, true).verdict, Finding::kWarn);
  EXPECT_EQ(judge_locked_memory(65536, false).verdict, Finding::kOk);
  EXPECT_EQ(judge_clock(0).verdict, Finding::kWarn);
  EXPECT_EQ(judge_threads(2, 8).verdict, Finding::kWarn);
  EXPECT_EQ(line_of(judge_shared_memory(64 << 20)),
            "warn  /dev/shm: 0.06 GiB. processes on one machine meet there; in a container: "
            "--ipc=host or --shm-size=8g");
  EXPECT_EQ(line_of(judge_open_files(4096)), "ok    open files: 4096");
}

TEST(Doctor, ThisMachineIsExamined) {
  const auto findings = examine(".");
  EXPECT_GE(findings.size(), 10U);
  for (const Finding& f : findings) {
    EXPECT_FALSE(f.found.empty()) << f.what;
    EXPECT_EQ(f.cure.empty(), f.verdict == Finding::kOk) << f.what;
  }
}

}  // namespace
}  // namespace troupe
