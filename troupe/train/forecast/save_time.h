// How long a checkpoint will take, estimated before the first one: a launcher that kills a run soon
// after SIGTERM would interrupt it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "troupe/core/file/publish.h"

namespace troupe {

// Seconds to write a file of `bytes` in the folder, extrapolated from a part that is written now
// and removed. Empty if that fails: the save will report why.
std::optional<double> write_seconds(Fs& fs, const std::string& folder, int64_t bytes);

}  // namespace troupe
