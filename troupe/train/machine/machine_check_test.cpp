#include "troupe/train/machine/machine_check.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "troupe/core/config/config.h"
#include "troupe/testing/files.h"

namespace troupe {
namespace {

constexpr int64_t kOneGiB = int64_t{1} << 30;

TEST(MachineCheck, F190_NumbersAreJudgedAgainstTheirBound) {
  const MachineBounds bounds;
  EXPECT_EQ(judge_host_clock(0.4, bounds).verdict, Finding::kOk);
  EXPECT_EQ(line_of(judge_host_clock(-7200, bounds)),
            "fail  clock: 7200.0 s behind the host's; bound: 5s. set it by NTP");
  EXPECT_EQ(judge_host_clock(6, bounds).verdict, Finding::kFail);
  EXPECT_EQ(line_of(judge_link({.round_trip = 0.0004, .rate = 2e9}, bounds)),
            "ok    link to the host: round trip 0.4 ms, 2000.0 MB/s; bound: 1s, 1.0 MB/s");
  EXPECT_EQ(judge_link({.round_trip = 1.5, .rate = 2e9}, bounds).verdict, Finding::kFail);
  EXPECT_EQ(judge_link({.round_trip = 0.1, .rate = 5e5}, bounds).verdict, Finding::kFail);
  EXPECT_EQ(line_of(judge_disk_speed("runs", {.write = 2.1e6, .read = 9e8}, bounds)),
            "fail  disk speed of runs: 2.1 MB/s written and synced, 900.0 MB/s read; bound: "
            "5.0 MB/s. choose another folder, or mend the disk");
  EXPECT_EQ(judge_disk_speed("runs", {.write = 9e8, .read = 1e6}, bounds).verdict, Finding::kFail);
  EXPECT_EQ(judge_free_memory(kOneGiB, bounds).verdict, Finding::kOk);
  EXPECT_EQ(judge_free_memory(-1, bounds).verdict, Finding::kOk);
  EXPECT_EQ(judge_free_memory(1 << 20, bounds).verdict, Finding::kFail);
}

TEST(MachineCheck, F190_AGpuIsJudgedBesideTheOthersOfItsMachine) {
  const std::vector<Finding> found = judge_gpus({{.free = 70 * kOneGiB, .speed = 600e12},
                                                 {.free = 70 * kOneGiB, .speed = 300e12},
                                                 {.free = kOneGiB / 2, .speed = 590e12},
                                                 {.failure = "CUDA error: uncorrectable ECC"}},
                                                MachineBounds{});
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(line_of(found[0]),
            "ok    GPU 0: 70.00 GiB free, 600.0 TFLOP/s, 1.00 of this machine's fastest; bound: "
            "1.00 GiB, 0.70");
  EXPECT_EQ(found[1].verdict, Finding::kFail);  // half the clock
  EXPECT_EQ(found[2].verdict, Finding::kFail);  // another process has its memory
  EXPECT_EQ(found[3].verdict, Finding::kFail);
  EXPECT_EQ(found[3].found, "fails: CUDA error: uncorrectable ECC");
  EXPECT_TRUE(judge_gpus({}, MachineBounds{}).empty());
}

TEST(MachineCheck, F190_UncorrectedErrorsOfAGpuAreNamed) {
  EXPECT_TRUE(judge_ecc_errors("").empty());
  EXPECT_TRUE(judge_ecc_errors("0, 0\n1, [N/A]\nNVIDIA-SMI has failed\n").empty());
  const std::vector<Finding> found = judge_ecc_errors("0, 0\n5, 3\n");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].what, "GPU 5 of nvidia-smi");
  EXPECT_EQ(found[0].verdict, Finding::kFail);
}

TEST(MachineCheck, F190_BoundsAreReadByTheirNamesAndUnits) {
  MachineBounds bounds;
  read_config(override_yaml("disk=50MB", "--check-bound"), bounds);
  read_config(override_yaml("clock=500ms", "--check-bound"), bounds);
  EXPECT_EQ(bounds.disk.value, 50'000'000);
  EXPECT_EQ(bounds.clock, milliseconds(500));
  const std::string what = testing::refusal_code(Code::kNoSuchField, [&] {
    read_config(override_yaml("disc=50MB", "--check-bound"), bounds);
  });
  EXPECT_NE(what.find("--check-bound disc=50MB"), std::string::npos) << what;
  bounds.gpu_speed = 2;
  testing::refusal_code(Code::kBadValue, [&] { validate(bounds); });
}

TEST(MachineCheck, F190_ASlowDiskIsMeasuredSlowAndNothingIsLeft) {
  const std::string folder = ::testing::TempDir() + "machine_check";
  std::filesystem::create_directories(folder);
  MachineToCheck machine{.folder = folder + "/not/there/yet", .gpus = false};
  machine.bounds.disk.value = 10'000'000;
  machine.bounds.memory.value = 0;
  std::vector<std::string> begun;
  std::vector<Finding> found;
  check_machine(
      machine, Faults("check.disk=sleep:600"),
      [&](const std::string& what) { begun.push_back(what); },
      [&](const Finding& finding) { found.push_back(finding); });
  ASSERT_EQ(found.size(), 2u);  // no host, no GPUs
  EXPECT_EQ(begun, (std::vector<std::string>{found[0].what, found[1].what}));
  EXPECT_EQ(found[0].verdict, Finding::kFail) << line_of(found[0]);
  EXPECT_EQ(found[1].verdict, Finding::kOk) << line_of(found[1]);
  EXPECT_TRUE(std::filesystem::is_empty(folder));

  machine.folder = "/proc/runs";  // nothing can be written there: said, not thrown
  found.clear();
  check_machine(
      machine, Faults(), [](const std::string&) {},
      [&](const Finding& finding) { found.push_back(finding); });
  EXPECT_EQ(found[0].verdict, Finding::kFail);
  EXPECT_EQ(found[0].what, "disk speed of /proc/runs");
}

}  // namespace
}  // namespace troupe
