// An append-only file for logs. Errors cost lines and one warning, never the run.
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

  // Writes all bytes, or fewer if the system takes fewer (disk full, ...): returns false then.
  // Recreates a deleted file and its folder. A line torn by an error or a killed process is ended
  // before the next one. A pipe under its name is not written to and does not block.
  bool append(std::string_view bytes);
  const std::string& path() const { return path_; }

 private:
  bool open();
  bool write(std::string_view& bytes);

  std::string path_;
  Log log_;
  Holds holds_;
  int fd_ = -1;
  bool torn_ = false;  // the file's last line is incomplete
  bool warned_ = false;
};

}  // namespace troupe
