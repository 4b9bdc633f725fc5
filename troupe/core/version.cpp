#include "troupe/core/version.h"

namespace troupe {

std::string version() {
  return TROUPE_VERSION;
}

}  // namespace troupe
