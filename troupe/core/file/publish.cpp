#include "troupe/core/file/publish.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;

constexpr std::string_view kStaging = ".staging-";

std::string parent(const std::string& path) {
  const std::string folder = stdfs::path(path).parent_path();
  return folder.empty() ? "." : folder;
}

// Beside `path`, and not to be guessed: nobody can put a link there first.
std::string staging_name(const std::string& path) {
  std::random_device random;
  char suffix[17];
  std::snprintf(suffix, sizeof(suffix), "%08x%08x", random(), random());
  return stdfs::path(path).parent_path() / (std::string(kStaging) + suffix);
}

void require(int status, const std::string& path, const std::string& operation) {
  if (status != 0) fail_file(Code::kFileFailed, path, operation, errno);
}

bool is_folder(const std::string& path) {  // a link to one is not
  std::error_code ignored;
  return stdfs::is_directory(stdfs::symlink_status(path, ignored));
}

std::vector<std::string> entries(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> out;
  for (stdfs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    out.push_back(it->path());
  }
  if (error) fail_file(Code::kFileFailed, folder, "list the folder", error.value());
  return out;
}

// The descriptor of this process that the path means, or -1.
int standard_descriptor(const std::string& path) {
  if (path == "-") return STDOUT_FILENO;
  struct stat named {
  }, ours{};
  if (::stat(path.c_str(), &named) != 0) return -1;
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) {
    if (::fstat(fd, &ours) == 0 && ours.st_dev == named.st_dev && ours.st_ino == named.st_ino) {
      return fd;
    }
  }
  return -1;
}

void write_as_it_is(Fs& fs, const std::string& path, int fd, std::string_view bytes) {
  const size_t left = write_all(fs, fd, std::as_bytes(std::span(bytes)));
  if (left == 0) return;
  const bool full = errno == ENOSPC || errno == EDQUOT;
  fail_file(full ? Code::kNoSpace : Code::kFileFailed, path, "write", errno,
            "; " + std::to_string(left) + " of " + std::to_string(bytes.size()) +
                " bytes are not written");
}

void sync_tree(Fs& fs, const std::string& folder) {
  for (const std::string& path : entries(folder)) {
    if (is_folder(path)) sync_tree(fs, path);
  }
  sync_directory(fs, folder);
}

}  // namespace

int Fs::open(const std::string& path, int flags) {
  return ::open(path.c_str(), flags, 0666);
}
ssize_t Fs::write(int fd, const void* data, size_t size) {
  return ::write(fd, data, size);
}
int Fs::fsync(int fd) {
  return ::fsync(fd);
}
int Fs::close(int fd) {
  return ::close(fd);
}
int Fs::rename(const std::string& from, const std::string& to) {
  return ::rename(from.c_str(), to.c_str());
}
int Fs::rename_new(const std::string& from, const std::string& to) {
  const int status = ::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE);
  if (status == 0 || (errno != EINVAL && errno != ENOSYS)) return status;
  // Not every network disk can do it in one step.
  struct stat info {};
  if (::lstat(to.c_str(), &info) == 0) return errno = EEXIST, -1;
  return ::rename(from.c_str(), to.c_str());
}
int Fs::exchange(const std::string& a, const std::string& b) {
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE);
}
int Fs::unlink(const std::string& path) {
  return ::unlink(path.c_str());
}
int Fs::mkdir(const std::string& path) {
  return ::mkdir(path.c_str(), 0777);
}
int Fs::rmdir(const std::string& path) {
  return ::rmdir(path.c_str());
}

size_t write_all(Fs& fs, int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = fs.write(fd, bytes.data(), bytes.size());
    if (wrote > 0) {
      bytes = bytes.subspan(static_cast<size_t>(wrote));
    } else if (wrote == 0) {
      return errno = EIO, bytes.size();  // Nothing taken and no reason given: do not ask forever.
    } else if (errno != EINTR) {
      return bytes.size();
    }
  }
  return 0;
}

int64_t free_bytes(const std::string& path) {
  struct statvfs info {};
  if (::statvfs(path.c_str(), &info) != 0) return -1;
  return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
}

void sync_directory(Fs& fs, const std::string& path) {
  const int fd = fs.open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) fail_file(Code::kFileFailed, path, "open the folder", errno);
  // EINVAL: the disk has no such operation, and keeps names in its own way.
  const int error = fs.fsync(fd) == 0 || errno == EINVAL ? 0 : errno;
  fs.close(fd);
  if (error != 0) fail_file(Code::kFileFailed, path, "sync the folder", error);
}

NewFile::NewFile(Fs& fs, std::string path, std::string name)
    : fs_(fs), path_(std::move(path)), name_(std::move(name)) {
  fd_ = fs_.open(path_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC);
  if (fd_ >= 0) return;
  const bool full = errno == ENOSPC || errno == EDQUOT;
  fail_file(full ? Code::kNoSpace : Code::kFileFailed, name_, "make the file", errno);
}

NewFile::~NewFile() {
  if (fd_ < 0) return;
  fs_.close(fd_);
  fs_.unlink(path_);
}

void NewFile::write(std::span<const std::byte> bytes) {
  TROUPE_CHECK(fd_ >= 0, path_, "is finished");
  const size_t left = write_all(fs_, fd_, bytes);
  if (left != 0) fail_and_remove("write", left);
  size_ += static_cast<int64_t>(bytes.size());
}

void NewFile::finish() {
  TROUPE_CHECK(fd_ >= 0, path_, "is finished");
  if (fs_.fsync(fd_) != 0) fail_and_remove("sync", 0);
  const int status = fs_.close(std::exchange(fd_, -1));
  // EINTR: closed all the same on Linux, and synced before.
  if (status != 0 && errno != EINTR) fail_and_remove("close", 0);
}

void NewFile::fail_and_remove(const std::string& operation, size_t bytes_left) {
  const int error = errno;
  if (fd_ >= 0) fs_.close(std::exchange(fd_, -1));
  fs_.unlink(path_);
  if (error != ENOSPC && error != EDQUOT) fail_file(Code::kFileFailed, name_, operation, error);
  // Asked after the removal: what the next attempt will find.
  const std::string more = "; " + std::to_string(size_) + " bytes were written before, " +
                           std::to_string(bytes_left) + " more are needed now, " +
                           std::to_string(free_bytes(parent(path_))) + " are free without the file";
  fail_file(Code::kNoSpace, name_, operation, error, more);
}

bool is_standard_output(const std::string& path) {
  return standard_descriptor(path) == STDOUT_FILENO;
}

std::string followed_link(const std::string& path) {
  constexpr int kMostLinks = 40;  // as the kernel's
  std::error_code error;
  stdfs::path at = path;
  for (int i = 0; i < kMostLinks; ++i) {
    if (!stdfs::is_symlink(stdfs::symlink_status(at, error))) break;
    const stdfs::path to = stdfs::read_symlink(at, error);
    if (error) break;
    at = at.parent_path() / to;  // `to` alone where it is absolute
  }
  return at;
}

void require_replaceable(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return;
  if (S_ISREG(info.st_mode) || S_ISLNK(info.st_mode) || S_ISDIR(info.st_mode)) return;
  fail(Code::kFileFailed, path, "is a pipe, a device or a socket, and would be replaced");
}

void write_output(Fs& fs, const std::string& path, std::string_view bytes) {
  const int own = standard_descriptor(path);
  if (own >= 0) {
    std::fflush(own == STDOUT_FILENO ? stdout : stderr);  // what was printed before stays before
    return write_as_it_is(fs, path, own, bytes);
  }
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno != ENOENT) fail_file(Code::kFileFailed, path, "look it up", errno);
    return publish_file(fs, followed_link(path), bytes);
  }
  if (S_ISREG(info.st_mode)) return publish_file(fs, followed_link(path), bytes);
  if (!S_ISFIFO(info.st_mode) && !S_ISCHR(info.st_mode)) {
    fail(Code::kFileFailed, path, "is a folder, a block device or a socket; name a file");
  }
  const int fd = fs.open(path, O_WRONLY | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) fail_file(Code::kFileFailed, path, "open", errno);
  try {
    write_as_it_is(fs, path, fd, bytes);
  } catch (...) {
    fs.close(fd);
    throw;
  }
  require(fs.close(fd), path, "close");
}

void publish_file(Fs& fs, const std::string& path, std::string_view bytes) {
  publish_file(fs, path, [&](NewFile& file) { file.write(bytes); });
}

void publish_file(Fs& fs, const std::string& path, const std::function<void(NewFile&)>& write) {
  require_replaceable(path);
  const std::string staging = staging_name(path);
  NewFile file(fs, staging, path);
  write(file);
  file.finish();
  if (fs.rename(staging, path) != 0) {
    const int error = errno;
    fs.unlink(staging);
    fail_file(Code::kFileFailed, path, "rename " + staging + " to this name", error);
  }
  sync_directory(fs, parent(path));
}

std::string make_staging_directory(Fs& fs, const std::string& target) {
  std::string staging = staging_name(target);
  require(fs.mkdir(staging), staging, "make the folder");
  return staging;
}

void publish_directory(Fs& fs, const std::string& staging, const std::string& target) {
  sync_tree(fs, staging);
  require(fs.rename_new(staging, target), target, "rename " + staging + " to this name");
  sync_directory(fs, parent(target));
}

void replace_directory(Fs& fs, const std::string& staging, const std::string& target) {
  require_replaceable(target);
  sync_tree(fs, staging);
  require(fs.exchange(staging, target), target, "exchange with " + staging);
  sync_directory(fs, parent(target));
  remove_tree(fs, staging);
}

void remove_tree(Fs& fs, const std::string& path) {
  if (is_folder(path)) {
    for (const std::string& entry : entries(path)) remove_tree(fs, entry);
    require(fs.rmdir(path), path, "remove the folder");
  } else {
    require(fs.unlink(path), path, "remove");
  }
}

void remove_published(Fs& fs, const std::string& path) {
  const std::string staging = staging_name(path);
  require(fs.rename(path, staging), path, "rename");
  sync_directory(fs, parent(path));
  remove_tree(fs, staging);
}

bool is_staging(std::string_view name) {
  return name.starts_with(kStaging);
}

int64_t remove_staging(Fs& fs, const std::string& directory) {
  int64_t removed = 0;
  for (const std::string& path : entries(directory)) {
    if (!is_staging(stdfs::path(path).filename().string())) continue;
    remove_tree(fs, path);
    ++removed;
  }
  return removed;
}

}  // namespace troupe
