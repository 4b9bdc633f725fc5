// A file system that records every operation, and fails or dies at the n-th: for tests that no
// result is ever half there.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "troupe/core/file/publish.h"

namespace troupe::testing {

class FaultFs : public Fs {
 public:
  // What happens at operation `at` (from 1; 0: never): kDie is _exit without any cleaning up.
  enum class Action { kFail, kShort, kDie };
  int at = 0;
  Action action = Action::kFail;
  int error = EIO;               // of kFail
  std::vector<std::string> log;  // "open a/b", "write 12", "fsync", "rename a b"

  int open(const std::string& path, int flags) override {
    return hit("open " + path) ? -1 : Fs::open(path, flags);
  }
  // kShort takes half of the bytes; kDie and kFail none.
  ssize_t write(int fd, const void* data, size_t size) override {
    if (hit("write " + std::to_string(size))) return -1;
    const bool half = action == Action::kShort && static_cast<int>(log.size()) == at;
    return Fs::write(fd, data, half ? (size + 1) / 2 : size);
  }
  int fsync(int fd) override { return hit("fsync") ? -1 : Fs::fsync(fd); }
  int close(int fd) override {
    const bool fails = hit("close");
    const int status =
        Fs::close(fd);  // Linux frees the descriptor even where close reports a fault.
    return fails ? (errno = error, -1) : status;
  }
  int rename(const std::string& from, const std::string& to) override {
    return hit("rename " + from + ' ' + to) ? -1 : Fs::rename(from, to);
  }
  int rename_new(const std::string& from, const std::string& to) override {
    return hit("rename_new " + from + ' ' + to) ? -1 : Fs::rename_new(from, to);
  }
  int exchange(const std::string& a, const std::string& b) override {
    return hit("exchange " + a + ' ' + b) ? -1 : Fs::exchange(a, b);
  }
  int unlink(const std::string& path) override {
    return hit("unlink " + path) ? -1 : Fs::unlink(path);
  }
  int mkdir(const std::string& path) override {
    return hit("mkdir " + path) ? -1 : Fs::mkdir(path);
  }
  int rmdir(const std::string& path) override {
    return hit("rmdir " + path) ? -1 : Fs::rmdir(path);
  }

 private:
  bool hit(const std::string& operation) {
    log.push_back(operation);
    if (static_cast<int>(log.size()) != at || action == Action::kShort) return false;
    if (action == Action::kDie) _exit(99);
    errno = error;
    return true;
  }
};

}  // namespace troupe::testing
