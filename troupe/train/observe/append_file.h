// A file that only grows, for logs: what goes wrong costs lines and one warning, never the run.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "troupe/core/file/log.h"

namespace troupe {

class AppendFile {
 public:
  enum class Holds { kLines, kRecords };
  AppendFile(std::string path, Log log, Holds holds);
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  ~AppendFile();

  // All of the bytes reach the system, or (disk full, folder deleted, ...) as few as it took. A
  // file that was deleted is made anew, with its folder. False if they were lost. Of lines, one
  // that was torn, by this or by a process that was killed, is ended before the next. A pipe
  // under its name takes nothing and blocks nothing.
  bool append(std::string_view bytes);
  const std::string& path() const { return path_; }

 private:
  bool open();
  bool write(std::string_view& bytes);

  std::string path_;
  Log log_;
  Holds holds_;
  int fd_ = -1;
  bool torn_ = false;  // the file's last line has no end
  bool warned_ = false;
};

}  // namespace troupe
