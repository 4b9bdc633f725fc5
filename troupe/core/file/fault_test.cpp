#include "troupe/core/file/fault.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

TEST(Fault, NothingHappensWhereNothingIsAsked) {
  const Faults none;
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.at("fs.op"), FaultAction::kNone);
  const Faults other("batch=eio");
  EXPECT_EQ(other.at("fs.op"), FaultAction::kNone);
  EXPECT_EQ(other.at("batc"), FaultAction::kNone);
}

TEST(Fault, HappensAtItsCountStepAndRankAlone) {
  const Faults counted("save.shard#2=eio");
  EXPECT_EQ(counted.at("save.shard"), FaultAction::kNone);
  EXPECT_EQ(counted.at("save.shard"), FaultAction::kEio);
  EXPECT_EQ(counted.at("save.shard"), FaultAction::kNone);
  const Faults stepped("optim:5=nan;forward.3=inf");
  EXPECT_EQ(stepped.at("optim", 4), FaultAction::kNone);
  EXPECT_EQ(stepped.at("optim"), FaultAction::kNone);
  EXPECT_EQ(stepped.at("optim", 5), FaultAction::kNan);
  EXPECT_EQ(stepped.at("optim", 5), FaultAction::kNan);  // without #n each time
  EXPECT_EQ(stepped.at("forward.3", 1), FaultAction::kInf);
  EXPECT_TRUE(Faults("load.read@3=eio", 2).empty());
  EXPECT_FALSE(Faults("load.read@3=eio", 3).empty());
  EXPECT_EQ(Faults("a#1@2:7=flip", 2).at("a", 7), FaultAction::kFlip);
}

TEST(Fault, DoesWhatTheProcessCanDoItself) {
  EXPECT_THROW(Faults("x=throw").at("x"), Error);
  const auto before = std::chrono::steady_clock::now();
  EXPECT_EQ(Faults("x=sleep:30").at("x"), FaultAction::kNone);
  EXPECT_GE(std::chrono::steady_clock::now() - before, std::chrono::milliseconds(30));
  for (const auto& [text, killed] : {std::pair{"x=kill", true}, {"x=exit:17", false}}) {
    const pid_t child = fork();
    if (child == 0) {
      Faults(text).at("x");
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(WIFSIGNALED(status), killed) << text;
    EXPECT_EQ(killed ? 17 : WEXITSTATUS(status), 17);
  }
}

TEST(Fault, RefusesTextThatDoesNotRead) {
  for (const char* text : {"x", "=eio", "x=", "x=boom", "x=exit", "x=exit:a", "x=eio:3", "x#0=eio",
                           "x#=eio", "x@a=eio", "x:=eio", "x:y=eio"}) {
    try {
      const Faults faults(text);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kBadFaultPoint) << e.what();
      EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
    }
  }
  EXPECT_TRUE(Faults(";;").empty());
}

TEST(Fault, TheDiskFailsAtTheNthOperation) {
  const testing::TemporaryFolder folder;
  Fs disk;
  for (int n = 1; n <= 7; ++n) {
    const Faults faults("fs.op#" + std::to_string(n) + "=eio");
    FaultyFs fs(disk, faults);
    EXPECT_THROW(publish_file(fs, folder / std::to_string(n), "abc"), Error) << n;
  }
  const Faults cut("fs.op#2=short"), full("fs.op#2=enospc");
  FaultyFs short_fs(disk, cut), full_fs(disk, full);
  publish_file(short_fs, folder / "x", "abcdef");
  EXPECT_EQ(read_file(folder / "x"), "abcdef");
  try {
    publish_file(full_fs, folder / "y", "abc");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kNoSpace);
  }
}

}  // namespace
}  // namespace troupe
