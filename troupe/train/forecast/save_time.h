// How long a checkpoint will take, told before there is one: a launcher that kills a run soon after
// SIGTERM would cut it off.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "troupe/core/file/publish.h"

namespace troupe {

// Seconds that a file of `bytes` takes in the folder, by the time that a part of it takes now; the
// part is removed. Nothing where it cannot be written: the save will say why.
std::optional<double> write_seconds(Fs& fs, const std::string& folder, int64_t bytes);

}  // namespace troupe
