// A file that only grows, for logs: what goes wrong costs lines and one warning, never the run.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "troupe/core/log.h"

namespace troupe {

class AppendFile {
 public:
  AppendFile(std::string path, Log log);
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  ~AppendFile();

  // All of the bytes reach the system, or (disk full, folder deleted, ...) as few as it took. A
  // file that was deleted is made anew, with its folder. False if they were lost.
  bool append(std::string_view bytes);
  const std::string& path() const { return path_; }

 private:
  bool open();

  std::string path_;
  Log log_;
  int fd_ = -1;
  bool warned_ = false;
};

}  // namespace troupe
