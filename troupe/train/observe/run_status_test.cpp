#include "troupe/train/observe/run_status.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>

#include "troupe/core/check.h"
#include "troupe/core/config/json.h"
#include "troupe/testing/files.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

constexpr double kLogEnd = 1700000060;
constexpr const char* kRunLog =
    "{\"event\":\"start\",\"step\":0,\"time\":1700000000}\n"
    "{\"step\":10,\"loss\":3.5,\"time\":1700000030}\n"
    "{\"event\":\"spike\",\"what\":\"loss 9.1\",\"step\":11,\"time\":1700000031}\n"
    "{\"event\":\"save\",\"step\":12,\"time\":1700000040}\n"
    "{\"step\":20,\"loss\":3.25,\"time\":1700000060}\n";

void put_record(const std::string& run, const ExitRecord& record) {
  std::ostringstream text;
  write_json(text, record);
  testing::put_file(run + "/exit.json", text.str() + "\n");
}

// The start of a process of this machine that is gone.
StartRecord start_of_a_dead_process() {
  StartRecord start = start_of_this_process();
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ::waitpid(child, nullptr, 0);
  const std::string own = std::to_string(start.pid), gone = std::to_string(child);
  start.process.replace(start.process.find(own), own.size(), gone);
  start.pid = child;
  return start;
}

class RunStatusTest : public ::testing::Test {
 protected:
  RunStatusTest() { testing::put_file(run_ + "/log.jsonl", kRunLog); }
  void add_step(int64_t step) const {
    std::filesystem::create_directory(run_ + "/step-0000" + std::to_string(step));
  }

  testing::TemporaryFolder folder_;
  const std::string run_ = folder_.path();
};

TEST_F(RunStatusTest, ARunThatRunsIsAsFarAsItsLog) {
  put_record(run_, {.state = RunState::kRunning, .code = -1, .start = start_of_this_process()});
  add_step(12);
  const RunStatus status = run_status(run_, kLogEnd + 5);
  EXPECT_EQ(status.state, "running");
  EXPECT_TRUE(status.alive.value_or(false));
  EXPECT_EQ(status.pid, ::getpid());
  EXPECT_EQ(status.step, 20);
  EXPECT_EQ(status.loss, 3.25);
  EXPECT_EQ(status.checkpoint, "step-000012");
  EXPECT_EQ(status.lost_steps, 8);
  EXPECT_EQ(status.silent_s, 5);
  EXPECT_EQ(exit_code_of(status), 0);
  EXPECT_NE(status_text(status).find("step        20, loss 3.250\n"), std::string::npos);
  EXPECT_NE(status_text(status).find("last line 5s ago\n"), std::string::npos);
}

TEST_F(RunStatusTest, OneWhoseProcessIsGoneWasKilled) {
  put_record(run_, {.state = RunState::kRunning, .code = -1, .start = start_of_a_dead_process()});
  add_step(12);
  const RunStatus status = run_status(run_, kLogEnd);
  EXPECT_EQ(status.state, "killed");
  EXPECT_FALSE(status.alive.value_or(true));
  EXPECT_EQ(exit_code_of(status), 6);
  const std::string why = end_text(run_, kLogEnd);
  EXPECT_EQ(std::ranges::count(why, '\n'), 5) << why;
  EXPECT_NE(why.find("  killed: process "), std::string::npos) << why;
  EXPECT_NE(why.find("its last line is of step 20, 2023-11-14 22:14:20 UTC"), std::string::npos)
      << why;
  EXPECT_NE(why.find("last event  step 11: spike loss 9.1\n"), std::string::npos) << why;
  EXPECT_NE(why.find("8 steps after it, to 20, that a start does again\n"), std::string::npos)
      << why;
  EXPECT_NE(why.find("the same command goes on after step-000012\n"), std::string::npos) << why;
}

TEST_F(RunStatusTest, OfAFailureTheRecordCountsAndItsClassSaysWhatToLookAt) {
  put_record(run_, {.state = RunState::kFailed,
                    .code = 6,
                    .error = "E6001",
                    .rank = 1,
                    .step = 18,
                    .phase = "reduce 1/2",
                    .message = "rank 1 is gone\nand more"});
  const RunStatus status = run_status(run_, kLogEnd);
  EXPECT_EQ(status.step, 18);
  EXPECT_FALSE(status.alive.has_value());
  EXPECT_EQ(exit_code_of(status), 6);
  EXPECT_EQ(end_text(run_, kLogEnd).find("flight.json"), std::string::npos);
  testing::put_file(run_ + "/flight.json", "{}\n");
  const std::string why = end_text(run_, kLogEnd);
  EXPECT_EQ(std::ranges::count(why, '\n'), 5) << why;
  EXPECT_NE(why.find("failed: code 6 E6001 of rank 1 in reduce 1/2 at step 18: rank 1 is gone\n"),
            std::string::npos)
      << why;
  EXPECT_NE(why.find("/flight.json shows who waited for whom; then the same command begins at"),
            std::string::npos)
      << why;
}

TEST_F(RunStatusTest, WithoutARecordNothingIsClaimed) {
  const RunStatus status = run_status(run_, kLogEnd);
  EXPECT_EQ(status.state, "unknown");
  EXPECT_EQ(exit_code_of(status), 4);
  testing::put_file(run_ + "/exit.json", "{\"state\":\"do");
  const RunStatus torn = run_status(run_, kLogEnd);
  EXPECT_EQ(torn.state, "unknown");
  EXPECT_NE(torn.warning.find("exit.json"), std::string::npos);
  EXPECT_EQ(torn.step, 20);  // a damaged file hides no other
}

TEST_F(RunStatusTest, AFolderOfRunsIsATable) {
  const testing::TemporaryFolder all;
  for (const char* name : {"b", "a"}) {
    const std::string run = all / name;
    std::filesystem::create_directory(run);
    put_record(run, {.state = RunState::kFinished, .step = 7, .message = "done"});
  }
  std::filesystem::create_directory(all / "notes");
  const std::vector<std::string> runs = run_folders_in(all.path());
  EXPECT_EQ(runs, (std::vector<std::string>{all / "a", all / "b"}));
  EXPECT_EQ(run_folders_in(runs[0]), std::vector<std::string>{runs[0]});
  EXPECT_THROW(run_folders_in(all / "notes"), Error);
  EXPECT_THROW(run_folders_in(all / "none"), Error);
  RunStatus one = run_status(runs[0], kLogEnd);
  one.run = "a";
  EXPECT_EQ(status_table({one}),
            "run  state     code  step  loss  checkpoint  log\n"
            "a    finished  0     7     -     -           -\n");
}

}  // namespace
}  // namespace troupe
