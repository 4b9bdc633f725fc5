// The version of this library, "0.2.0": that of the project in CMakeLists.txt, which names it once. A checkpoint's manifest
// says it of what wrote it. Before 1.0 a minor version may change any interface (docs/develop/RELEASE.md).
#pragma once

#include <string>

namespace troupe {

std::string version();

}  // namespace troupe
