// What this build is: its version, and the commit that it was configured at.
#pragma once

#include <string>

#include "troupe/core/version.h"

namespace troupe {

std::string commit();        // "61c3232", with "+" where files had changed; "unknown" outside git
std::string version_line();  // "troupe 0.2.0 (61c3232)"
// That line, and what the program was built with and for, a line each (ops/support/build_info.h).
std::string version_text();

}  // namespace troupe
