#include "troupe/core/file/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>

#include "troupe/core/device/limits.h"

namespace troupe {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

int64_t nanoseconds_of(const struct stat& info) {
  return int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
}

}  // namespace

void fail_file(Code code, const std::string& path, const std::string& operation, int error,
               const std::string& more) {
  const std::string why = std::generic_category().message(error);
  if (error == EMFILE || error == ENFILE) {  // nothing is wrong with this file
    fail(Code::kFileFailed, path, "cannot",
         operation + ": " + why + "; raise the limit on open files (ulimit -n)" +
             limits_behind(error) + more);
  }
  if (rlimit limit{}; error == EFBIG) {  // nor here
    const bool limited = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    const std::string raise = limited ? "; raise the limit on file sizes (ulimit -f)" : "";
    fail(Code::kFileFailed, path, "cannot", operation + ": " + why + raise + more);
  }
  fail(code, path, "cannot", operation + ": " + why + more);
}

InputFile::InputFile(std::string path, Code fault) : path_(std::move(path)), fault_(fault) {
  fd_ = ::open(path_.c_str(),
               O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // Or a pipe would wait for a writer.
  if (fd_ < 0) fail_file(fault_, path_, "open", errno);
  struct stat info {};
  const int error = ::fstat(fd_, &info) == 0 ? 0 : errno;
  if (error == 0 && S_ISREG(info.st_mode)) {
    size_ = info.st_size;
    written_ns_ = nanoseconds_of(info);
    device_ = info.st_dev;
    inode_ = info.st_ino;
    return;
  }
  ::close(std::exchange(fd_, -1));  // A constructor that throws runs no destructor.
  if (error != 0) fail_file(fault_, path_, "ask for the size", error);
  fail(fault_, path_, "is", kind_of(info.st_mode), "and not a regular file");
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)),
      fault_(other.fault_),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      written_ns_(other.written_ns_),
      device_(other.device_),
      inode_(other.inode_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fault_, other.fault_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(written_ns_, other.written_ns_);
  std::swap(device_, other.device_);
  std::swap(inode_, other.inode_);
  return *this;
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void InputFile::require_unchanged(Code changed) const {
  struct stat info {};
  if (::stat(path_.c_str(), &info) != 0) fail_file(changed, path_, "find again", errno);
  if (info.st_size != size_) {
    fail(changed, path_, "has", info.st_size, "bytes now and had", size_, "when it was opened");
  }
  if (info.st_dev != device_ || info.st_ino != inode_) {
    fail(changed, path_, "was replaced by another file since it was opened");
  }
  if (nanoseconds_of(info) != written_ns_) {
    fail(changed, path_, "was written to since it was opened");
  }
}

void InputFile::read_at(int64_t offset, std::span<std::byte> out) const {
  TROUPE_CHECK(offset >= 0, path_, "offset", offset);
  while (!out.empty()) {
    const ssize_t got = ::pread(fd_, out.data(), out.size(), offset);
    if (got < 0 && errno == EINTR) continue;
    const std::string place = path_ + " at byte " + std::to_string(offset);
    if (got < 0) fail_file(fault_, place, "read", errno);
    if (got == 0) {
      fail(fault_, place, "the file ends,", out.size(), "bytes before it should; it had", size_,
           "when it was opened");
    }
    offset += got;
    out = out.subspan(static_cast<size_t>(got));
  }
}

std::string read_file(const std::string& path, Code fault, int64_t limit) {
  const InputFile file(path, fault);
  if (file.size() > limit) fail(fault, path, "has", file.size(), "bytes, more than", limit);
  std::string out(static_cast<size_t>(file.size()), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(out)));
  return out;
}

bool is_there(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

FileKind file_kind(const std::string& path, Code fault) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return FileKind::kNothing;
    fail_file(fault, path, "look it up", errno);
  }
  if (S_ISREG(info.st_mode)) return FileKind::kFile;
  return S_ISDIR(info.st_mode) ? FileKind::kFolder : FileKind::kOther;
}

std::vector<std::string> names_in(const std::string& folder, Code fault) {
  const std::unique_ptr<DIR, int (*)(DIR*)> open(::opendir(folder.c_str()), ::closedir);
  if (!open) fail_file(fault, folder, "open the folder", errno);
  std::vector<std::string> out;
  for (;;) {
    errno = 0;
    const dirent* const entry = ::readdir(open.get());
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    if (name != "." && name != "..") out.push_back(name);
  }
  if (errno != 0) fail_file(fault, folder, "read the folder", errno);
  std::sort(out.begin(), out.end());
  return out;
}

MappedFile::MappedFile(const std::string& path, Code fault) {
  const InputFile file(path, fault);
  const auto size = static_cast<size_t>(file.size());
  if (size == 0) return;
  void* const data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.fd_, 0);
  if (data == MAP_FAILED) fail_file(fault, path, "map", errno);
  bytes_ = {static_cast<const std::byte*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

}  // namespace troupe
