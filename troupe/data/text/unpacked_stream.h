// What gzip and Zstandard packed. A file of several members (or frames) is their texts one after
// the other. A file that is cut off, or damaged, is E3001 with how much was unpacked before.
#pragma once

#include <memory>
#include <string>

#include "troupe/data/text/text_stream.h"

namespace troupe {

std::unique_ptr<TextStream> unpack_gzip(const std::string& path);
std::unique_ptr<TextStream> unpack_zstd(const std::string& path);

}  // namespace troupe
