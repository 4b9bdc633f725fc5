#include "troupe/train/observe/version.h"

#include "troupe/ops/support/build_info.h"

namespace troupe {

std::string commit() {
  return TROUPE_COMMIT;
}

std::string version_line() {
  return "troupe " + version() + " (" + commit() + ")";
}

std::string version_text() {
  return version_line() + '\n' + build_info();
}

}  // namespace troupe
