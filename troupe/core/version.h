// The version of this library, such as "0.2.0", from project(VERSION) in CMakeLists.txt. Each checkpoint's manifest
// records the version that wrote it. Before 1.0 a minor version may change any interface (docs/develop/RELEASE.md).
#pragma once

#include <string>

namespace troupe {

std::string version();

}  // namespace troupe
