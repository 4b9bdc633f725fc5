#include "troupe/train/observe/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace troupe {

AppendFile::AppendFile(std::string path, Log log, Holds holds)
    : path_(std::move(path)), log_(std::move(log)), holds_(holds) {}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

bool AppendFile::open() {
  if (fd_ >= 0) ::close(fd_);
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
  // A pipe is refused: it would wait for a reader, and then for each line to be read.
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
               0644);
  struct stat info {};
  if (fd_ < 0 || ::fstat(fd_, &info) != 0) return false;
  if (S_ISFIFO(info.st_mode)) {
    ::close(std::exchange(fd_, -1));
    errno = EPIPE;
    return false;
  }
  char last = '\n';
  torn_ = info.st_size > 0 && ::pread(fd_, &last, 1, info.st_size - 1) == 1 && last != '\n';
  return true;
}

// All of them, or as many as the system took.
bool AppendFile::write(std::string_view& bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool AppendFile::append(std::string_view bytes) {
  struct stat info {};
  // Writes to a deleted file succeed, and are lost.
  const bool there = fd_ >= 0 && ::fstat(fd_, &info) == 0 && info.st_nlink > 0;
  errno = 0;
  if (there || open()) {
    // What a kill or a full disk has torn ends there: the next line stands alone.
    std::string_view end = torn_ && holds_ == Holds::kLines ? "\n" : "";
    const size_t all = bytes.size();
    if (write(end)) {
      torn_ = false;
      if (!write(bytes)) torn_ = bytes.size() < all;
    }
  }
  if (!bytes.empty() && !std::exchange(warned_, true)) {
    log_.warning(path_ + ": lines are lost: " + std::strerror(errno));
  }
  return bytes.empty();
}

}  // namespace troupe
