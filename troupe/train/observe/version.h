// What this build is: "0.1.0", and the commit that it was configured at.
#pragma once

#include <string>

namespace troupe {

std::string version();
std::string commit();  // "61c3232", with "+" where files had changed; "unknown" outside git

}  // namespace troupe
