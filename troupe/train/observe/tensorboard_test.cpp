#include "troupe/train/observe/tensorboard.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "troupe/core/file/file.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

std::string from_hex_text(std::string_view text) {
  std::string out;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    out += static_cast<char>(std::stoi(std::string(text.substr(i, 2)), nullptr, 16));
  }
  return out;
}

TEST(TensorBoard, ChecksumIsCastagnolis) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(masked_crc32c("\x1A\x11"
                          "CRC test, one two"),
            0x5794D08Au);
}

// Bytes that TensorFlow's own writer made.
TEST(TensorBoard, EventsAreTheGoldenBytes) {
  EXPECT_EQ(tensorboard::version_event(1.0),
            from_hex_text("1800000000000000a37f4b22"
                          "09000000000000f03f1a0d627261696e2e4576656e743a3286bf577a"));
  EXPECT_EQ(tensorboard::scalars_event(2.0, 7, {{"loss", 2.5}}),
            from_hex_text("1a00000000000000129bd82d"
                          "09000000000000004010072a0d0a0b0a046c6f73731500002040c2dfec60"));
}

TEST(TensorBoard, F133_AResumedRunOpensANewFileWithASessionStart) {
  const testing::TemporaryFolder folder;
  TensorBoard first(folder / "tb", -1, Log());
  first.scalars(1, {{"loss", 3.0}});
  TensorBoard second(folder / "tb", 1, Log());
  EXPECT_NE(first.path(), second.path());
  const std::string bytes = read_file(second.path());
  const std::string start = tensorboard::session_start_event(0, 1);
  // The record's tail: step 1, session_log {status START}.
  EXPECT_NE(bytes.find(start.substr(21, 6)), std::string::npos);
  EXPECT_EQ(bytes.size(), tensorboard::version_event(0).size() + start.size());
}

TEST(TensorBoard, F132_ADeletedFolderIsMadeAnewAndNothingIsThrown) {
  const testing::TemporaryFolder folder;
  TensorBoard board(folder / "tb", -1, Log());
  std::filesystem::remove_all(folder / "tb");
  board.scalars(1, {{"loss", 3.0}});
  EXPECT_TRUE(std::filesystem::exists(board.path()));
}

}  // namespace
}  // namespace troupe
