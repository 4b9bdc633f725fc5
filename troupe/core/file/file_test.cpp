#include "troupe/core/file/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

using testing::TemporaryFolder;

void write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

template <class F>
std::string error_of(Code code, F&& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST(File, ReadsAWholeFile) {
  const TemporaryFolder folder;
  const std::string text("a\0b\n", 4), path = folder / "with space \xc3\xa9";
  write(path, text);
  EXPECT_EQ(read_file(path), text);
  EXPECT_EQ(text_of(MappedFile(path).bytes()), text);
  std::filesystem::create_symlink(path, folder / "link");
  EXPECT_EQ(read_file(folder / "link"), text);
}

TEST(File, AnEmptyFileIsNoFault) {
  const TemporaryFolder folder;
  write(folder / "x", "");
  EXPECT_EQ(read_file(folder / "x"), "");
  EXPECT_TRUE(MappedFile(folder / "x").bytes().empty());
}

TEST(File, ReadsAtAnyOffset) {
  const TemporaryFolder folder;
  write(folder / "x", "0123456789");
  InputFile file(folder / "x");
  InputFile moved(std::move(file));
  char out[3];
  moved.read_at(4, std::as_writable_bytes(std::span(out)));
  EXPECT_EQ(std::string(out, 3), "456");
  EXPECT_EQ(moved.size(), 10);
}

TEST(File, NamesPathOffsetAndReason) {
  const TemporaryFolder folder;
  const std::string path = folder / "x";
  EXPECT_EQ(
      error_of(Code::kUnreadableCheckpoint, [&] { read_file(path, Code::kUnreadableCheckpoint); }),
      path + ": E4001 cannot open: No such file or directory");
  write(path, "0123456789");
  EXPECT_EQ(error_of(Code::kUnreadableData, [&] { read_file(path, Code::kUnreadableData, 9); }),
            path + ": E3001 has 10 bytes, more than 9");
  const InputFile file(path);
  std::filesystem::resize_file(path, 6);
  char out[8];
  EXPECT_EQ(error_of(Code::kUnreadableData,
                     [&] { file.read_at(2, std::as_writable_bytes(std::span(out))); }),
            path +
                " at byte 6: E3001 the file ends, 4 bytes before it should; it had 10 when it was "
                "opened");
  EXPECT_THROW(file.read_at(-1, {}), Error);
}

TEST(File, RefusesWhatIsNoRegularFileAndNeverBlocks) {
  const TemporaryFolder folder;
  const std::string path = folder / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(error_of(Code::kUnreadableData, [&] { read_file(path); }),
            path + ": E3001 is a pipe and not a regular file");
  EXPECT_EQ(error_of(Code::kUnreadableData, [&] { MappedFile{folder.path()}; }),
            folder.path() + ": E3001 is a folder and not a regular file");
  EXPECT_EQ(error_of(Code::kUnreadableData, [&] { read_file("/dev/zero"); }),
            "/dev/zero: E3001 is a device and not a regular file");
}

TEST(File, IsThereWhereALinkLeads) {
  const TemporaryFolder folder;
  const std::string link = folder / "link";
  EXPECT_FALSE(is_there(link));
  std::filesystem::create_symlink(folder.path(), link);
  EXPECT_TRUE(is_there(link));
  EXPECT_TRUE(is_there(folder.path()));
  EXPECT_FALSE(is_there(link + "/nothing"));
  EXPECT_FALSE(is_there(""));
}

// std::filesystem's questions throw there, and the process ended as if the fault were its own.
TEST(File, F161_WhatTheSystemDoesNotSayIsAnErrorWithItsPlace) {
  const TemporaryFolder folder;
  const std::string loop = folder / "loop", lost = folder / "lost";
  std::filesystem::create_symlink(loop, loop);
  std::filesystem::create_symlink(folder / "nowhere", lost);
  write(folder / "x", "abc");
  EXPECT_EQ(file_kind(folder / "x"), FileKind::kFile);
  EXPECT_EQ(file_kind(folder.path()), FileKind::kFolder);
  EXPECT_EQ(file_kind("/dev/null"), FileKind::kOther);
  EXPECT_EQ(file_kind(lost), FileKind::kNothing);
  EXPECT_EQ(file_kind(folder / "x/y"), FileKind::kNothing);
  EXPECT_EQ(error_of(Code::kUnreadableData, [&] { file_kind(loop); }),
            loop + ": E3001 cannot look it up: Too many levels of symbolic links");
  const std::string name = folder / std::string(300, 'a');
  EXPECT_EQ(error_of(Code::kUnreadableData, [&] { file_kind(name); }),
            name + ": E3001 cannot look it up: File name too long");
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"loop", "lost", "x"}));
  EXPECT_EQ(error_of(Code::kUnreadableData, [&] { names_in(folder / "x"); }),
            (folder / "x") + ": E3001 cannot open the folder: Not a directory");
}

TEST(File, AMovedMapStaysMapped) {
  const TemporaryFolder folder;
  write(folder / "x", "abc");
  write(folder / "y", "de");
  MappedFile x(folder / "x"), y(folder / "y");
  y = std::move(x);
  const MappedFile z(std::move(y));
  EXPECT_EQ(text_of(z.bytes()), "abc");
}

}  // namespace
}  // namespace troupe
