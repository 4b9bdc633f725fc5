#include "troupe/core/device/open_files.h"

#include <sys/resource.h>

#include <algorithm>

namespace troupe {
namespace {

int64_t files_of(rlim_t limit) {
  return limit == RLIM_INFINITY ? -1 : static_cast<int64_t>(limit);
}

}  // namespace

OpenFiles raise_open_files() {
  struct rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return {};
  OpenFiles out{.given = files_of(limit.rlim_cur), .allowed = files_of(limit.rlim_cur)};
  const rlim_t most = std::min(limit.rlim_max, static_cast<rlim_t>(kMostOpenFiles));
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= most) return out;
  limit.rlim_cur = most;
  if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) out.allowed = files_of(most);
  return out;
}

const OpenFiles& open_files() {
  static const OpenFiles files = raise_open_files();
  return files;
}

}  // namespace troupe
