#include "troupe/train/report/read_events.h"

#include <gtest/gtest.h>

#include <array>

#include "troupe/testing/files.h"
#include "troupe/testing/temporary_folder.h"
#include "troupe/train/observe/tensorboard.h"

namespace troupe {
namespace {

using testing::from_hex_text;
using testing::has;
using testing::put_file;
using testing::refusal_code;
using testing::TemporaryFolder;

// What TensorFlow's own writer made: the version, and a scalar "loss" of 2.5 at step 7.
const std::string kGolden = from_hex_text(
    "1800000000000000a37f4b22"
    "09000000000000f03f1a0d627261696e2e4576656e743a3286bf577a"
    "1a00000000000000129bd82d"
    "09000000000000004010072a0d0a0b0a046c6f73731500002040c2dfec60");

struct Events : ::testing::Test {
  TemporaryFolder folder;
  EventsSummary read(const std::string& bytes) const {
    put_file(folder / "e", bytes);
    return read_events(folder / "e");
  }
};

TEST_F(Events, GoldenBytesAreRead) {
  const EventsSummary s = read(kGolden);
  EXPECT_EQ(s.version, "brain.Event:2");
  EXPECT_EQ(s.events, 2);
  EXPECT_EQ(s.torn, "");
  ASSERT_EQ(s.tags.size(), 1u);
  EXPECT_EQ(s.tags[0].tag, "loss");
  EXPECT_EQ(s.tags[0].kind, "scalar");
  EXPECT_EQ(s.tags[0].last, 2.5);
  EXPECT_EQ(s.tags[0].first_step, 7);
}

TEST_F(Events, AllThatWeWriteIsRead) {
  TensorBoard board(folder / "tb", 4, Log());
  board.scalars(5, {{"loss", 3.0}, {"lr", 0.5}});
  board.scalars(6, {{"loss", 2.0}});
  board.text(6, "sample", "Once");
  board.counts(6, "load", std::array{1.0, 2.0});
  const EventsSummary s = read_events(board.path());
  EXPECT_EQ(s.starts, (std::vector<int64_t>{4}));
  ASSERT_EQ(s.tags.size(), 4u);
  EXPECT_EQ(s.tags[0].kind, "histogram");
  EXPECT_EQ(s.tags[1].points, 2);
  EXPECT_EQ(s.tags[1].last, 2.0);
  EXPECT_EQ(s.tags[1].last_step, 6);
  EXPECT_EQ(s.tags[3].tag, "sample");
  EXPECT_EQ(s.tags[3].kind, "text");
}

TEST_F(Events, F132_ATornTailIsToldAndWhatIsBeforeItRead) {
  for (size_t cut = 1; cut < 40; ++cut) {
    const EventsSummary s = read(kGolden.substr(0, kGolden.size() - cut));
    EXPECT_EQ(s.events, 1);
    EXPECT_PRED2(has, s.torn, "at byte 40");
  }
}

TEST_F(Events, EveryFlippedBitIsFound) {
  for (size_t bit = 0; bit < 8 * kGolden.size(); ++bit) {
    std::string bytes = kGolden;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    EXPECT_PRED2(has, refusal_code(Code::kUnreadableData, [&] { read(bytes); }), "checksum") << bit;
  }
}

TEST_F(Events, WhatIsNoEventFileIsRefused) {
  refusal_code(Code::kUnreadableData, [&] { read(""); });
  refusal_code(Code::kUnreadableData, [&] { read("a line of text, longer than a record's head"); });
  // A record with good checksums whose bytes are no message: a length beyond its end.
  refusal_code(Code::kUnreadableData, [&] { read(tensorboard::framed("\x2A\x7F")); });
}

}  // namespace
}  // namespace troupe
