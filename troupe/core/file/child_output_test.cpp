#include "troupe/core/file/child_output.h"

#include <gtest/gtest.h>

#include <array>

#include "troupe/testing/files.h"

namespace troupe {
namespace {

using testing::has;

TEST(ChildOutput, IsReadToItsEnd) {
  ChildOutput child({"seq", "100000"});
  const std::string text = child.rest();
  EXPECT_EQ(text.size(), 588895u);
  EXPECT_TRUE(text.ends_with("\n100000\n"));
  EXPECT_TRUE(child.wait().ok);
  EXPECT_TRUE(child.wait().ok);
}

TEST(ChildOutput, WhatItSaysLastIsKept) {
  ChildOutput child({"sh", "-c", "echo out; seq 100000 >&2; echo 'the reason' >&2; exit 3"});
  EXPECT_EQ(child.rest(), "out\n");
  const ChildEnd end = child.wait();
  EXPECT_FALSE(end.ok);
  EXPECT_EQ(end.said, "the reason");
}

TEST(ChildOutput, ASignalIsNamed) {
  ChildOutput child({"sh", "-c", "kill -9 $$"});
  EXPECT_EQ(child.rest(), "");
  EXPECT_PRED2(has, child.wait().said, "signal 9");
}

TEST(ChildOutput, AProgramThatIsNotThereNeverBegan) {
  ChildOutput child({"no-such-program"});
  std::array<char, 10> block{};
  EXPECT_EQ(child.read(block), 0u);
  EXPECT_TRUE(child.wait().never_began);
}

TEST(ChildOutput, OneThatRunsOnEndsWithTheObject) {
  const ChildOutput child({"sleep", "1000"});
}

TEST(ChildOutput, ClosedErrorsDoNotEndTheOutput) {
  ChildOutput child({"sh", "-c", "exec 2>&-; sleep 0.2; echo late"});
  EXPECT_EQ(child.rest(), "late\n");
  EXPECT_TRUE(child.wait().ok);
}

TEST(ChildOutput, AnswersWhatItIsSent) {
  ChildOutput child({"cat"}, ChildInput::kSent);
  ASSERT_TRUE(child.send("one\ntwo\nth"));
  EXPECT_EQ(child.line(), "one");
  EXPECT_EQ(child.line(), "two");
  ASSERT_TRUE(child.send("ree\n"));
  EXPECT_EQ(child.line(), "three");
  EXPECT_TRUE(child.wait().ok);
}

TEST(ChildOutput, BothMayWriteMoreThanAPipeHolds) {
  ChildOutput child({"cat"}, ChildInput::kSent);
  const std::string text(size_t{8} << 20, 'x');
  ASSERT_TRUE(child.send(text));
  ASSERT_TRUE(child.send("\n"));
  EXPECT_EQ(child.line(), text);
}

TEST(ChildOutput, SendingToOneThatHasEndedIsNoSignal) {
  ChildOutput child({"sh", "-c", "echo out; echo 'the reason' >&2; exit 3"}, ChildInput::kSent);
  EXPECT_EQ(child.line(), "out");
  EXPECT_EQ(child.line(), std::nullopt);
  while (child.send("more")) {
  }
  EXPECT_EQ(child.wait().said, "the reason");
}

}  // namespace
}  // namespace troupe
