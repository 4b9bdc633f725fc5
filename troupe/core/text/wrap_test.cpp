#include "troupe/core/text/wrap.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

TEST(Wrapped, BreaksAtSpacesBelowTheFirstWord) {
  EXPECT_EQ(wrapped("batch 8 sequences of 32 = 1 x micro batch 8", 30, 5),
            "batch 8 sequences of 32 =\n     1 x micro batch 8");
  EXPECT_EQ(wrapped("batch 8 sequences of 32 =", 30, 5), "batch 8 sequences of 32 =");
  EXPECT_EQ(wrapped("batch 8 sequences of 32  = 1", 30, 5), "batch 8 sequences of 32\n     = 1");
  EXPECT_EQ(wrapped("", 30, 5), "");
}

TEST(Wrapped, CountsCharacters) {
  EXPECT_EQ(wrapped("ü ü ü ü ü ü ü ü ü ü ü ü ü ü ü", 29, 0), "ü ü ü ü ü ü ü ü ü ü ü ü ü ü ü");
  EXPECT_EQ(wrapped("ü ü ü ü ü ü ü ü ü ü ü ü ü ü ü", 28, 0), "ü ü ü ü ü ü ü ü ü ü ü ü ü ü\nü");
}

TEST(Wrapped, KeepsLongWordsCommandsAndLines) {
  const std::string path(40, 'p');
  EXPECT_EQ(wrapped("saved " + path + " in 1 s", 30, 2), "saved\n  " + path + "\n  in 1 s");
  EXPECT_EQ(wrapped("done. To train on: troupe train nano.yaml --set train.steps=40", 30, 2),
            "done. To train on:\n  troupe train nano.yaml --set train.steps=40");
  EXPECT_EQ(wrapped("stacks:\n  thread 1 a b\nthread 2", 30, 2),
            "stacks:\n  thread 1 a b\nthread 2");
}

TEST(Wrapped, LeavesANarrowTerminalAlone) {
  const std::string text = "batch 8 sequences of 32 = 1 x micro batch 8";
  EXPECT_EQ(wrapped(text, 40, 18), text);
  EXPECT_EQ(wrapped(text, 0, 18), text);
}

}  // namespace
}  // namespace troupe
