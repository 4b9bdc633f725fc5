#include "troupe/core/file/hub_file.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "troupe/core/file/file.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;

bool is_within(const stdfs::path& path, const stdfs::path& folder) {
  return std::ranges::mismatch(folder, path).in1 == folder.end();
}

// That the folder's links lead into, where it is a snapshot of a cache.
bool is_blob(const stdfs::path& path, const stdfs::path& folder) {
  if (folder.parent_path().filename() != "snapshots") return false;
  std::error_code error;
  const stdfs::path blobs = stdfs::canonical(folder.parent_path().parent_path() / "blobs", error);
  return !error && is_within(path, blobs);
}

}  // namespace

bool leaves_hub_folder(const std::string& path, const std::string& folder) {
  std::error_code error;
  const stdfs::path real = stdfs::canonical(path, error);
  if (error) return false;
  const stdfs::path home = stdfs::canonical(folder, error);
  return !error && !is_within(real, home) && !is_blob(real, home);
}

std::string read_hub_file(const std::string& folder, const std::string& name, Code fault,
                          int64_t limit) {
  const std::string path = folder + '/' + name;
  if (leaves_hub_folder(path, folder)) {
    fail(fault, path, "is a link that leaves the folder: put the file itself there");
  }
  return read_file(path, fault, limit);
}

}  // namespace troupe
