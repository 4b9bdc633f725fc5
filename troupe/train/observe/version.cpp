#include "troupe/train/observe/version.h"

namespace troupe {

std::string version() {
  return TROUPE_VERSION;
}

std::string commit() {
  return TROUPE_COMMIT;
}

}  // namespace troupe
