// An output's folder is made where there is none, as a run's is.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"

namespace troupe {

// Makes the folders above `path` that are not there. E7002 names the one that cannot be made.
inline void make_parent_folders(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  if (parent.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  if (error) fail_file(Code::kFileFailed, parent, "make the folder", error.value());
}

}  // namespace troupe
