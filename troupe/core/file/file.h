// Reading files. Every fault is an Error that begins with the path and ends with the system's
// reason. Only regular files are opened (through symbolic links, as model hubs use them): a pipe or
// a device under the expected name is refused and never blocks. `fault` is the code of what the
// caller reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/check.h"

namespace troupe {

// A file open for reading at any offset; several threads may read at once.
class InputFile {
 public:
  explicit InputFile(std::string path, Code fault = Code::kUnreadableData);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::string& path() const { return path_; }
  int64_t size() const { return size_; }              // when it was opened
  int64_t written_ns() const { return written_ns_; }  // when it was last written to, by then
  // Throws `changed` if the file has been cut, grown, written to or replaced since it was opened.
  void require_unchanged(Code changed) const;
  // Fills `out` from `offset`. A file that ends before that is a fault.
  void read_at(int64_t offset, std::span<std::byte> out) const;

 private:
  friend class MappedFile;
  std::string path_;
  Code fault_;
  int fd_ = -1;
  int64_t size_ = 0;
  int64_t written_ns_ = 0;  // when it was last written to
  uint64_t device_ = 0, inode_ = 0;
};

// The whole of a small file; more than `limit` bytes are refused before they are read.
std::string read_file(const std::string& path, Code fault = Code::kUnreadableData,
                      int64_t limit = std::numeric_limits<int64_t>::max());

// A file as memory, read by the page when touched. Where the disk may fail, or another process may
// cut the file, the touch is a SIGBUS: what must survive that reads through InputFile.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path, Code fault = Code::kUnreadableData);
  MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;  // empty for an empty file
};

// Whether anything has that name, or is where a link of that name points. What cannot be asked is
// not there.
bool is_there(const std::string& path);

// What has that name, or is where a link of that name points. Throws `fault` where the system
// does not say: a folder that may not be entered, links that lead in a circle, a name that is too
// long. std::filesystem's own questions throw what nobody catches: tools/check_filesystem.py finds
// them.
enum class FileKind { kNothing, kFile, kFolder, kOther };
FileKind file_kind(const std::string& path, Code fault = Code::kUnreadableData);

// The names in a folder besides . and .., sorted.
std::vector<std::string> names_in(const std::string& folder, Code fault = Code::kUnreadableData);

// Throws "path: code cannot <operation>: <the text of `error`, an errno>", with `more` at the end.
[[noreturn]] void fail_file(Code code, const std::string& path, const std::string& operation,
                            int error, const std::string& more = "");

}  // namespace troupe
