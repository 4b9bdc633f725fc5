#include "troupe/train/append_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace troupe {

AppendFile::AppendFile(std::string path, Log log) : path_(std::move(path)), log_(std::move(log)) {}

AppendFile::~AppendFile() {
  if (fd_ >= 0) ::close(fd_);
}

bool AppendFile::open() {
  if (fd_ >= 0) ::close(fd_);
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path(), ignored);
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0644);
  return fd_ >= 0;
}

bool AppendFile::append(std::string_view bytes) {
  struct stat info {};
  // A deleted file goes on taking bytes that nobody will see.
  const bool there = fd_ >= 0 && ::fstat(fd_, &info) == 0 && info.st_nlink > 0;
  errno = 0;
  if (there || open()) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  if (!bytes.empty() && !std::exchange(warned_, true)) {
    log_.warning(path_ + ": lines are lost: " + std::strerror(errno));
  }
  return bytes.empty();
}

}  // namespace troupe
