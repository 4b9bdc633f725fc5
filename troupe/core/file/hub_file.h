// Files of a folder that came from a model hub. What such a folder holds is kept in a run and
// published by an export, so a link out of it would give away what it leads to. A link to another
// file of the folder is followed, and one into the blobs of a hub's cache, which has
//   models--OWNER--NAME/snapshots/HASH/FILE -> ../../blobs/HASH.
#pragma once

#include <cstdint>
#include <string>

#include "troupe/core/check.h"

namespace troupe {

// Whether the file, through all links, is neither in the folder nor in the blobs of its cache.
// What is not there leaves nothing.
bool leaves_hub_folder(const std::string& path, const std::string& folder);

// The whole of the small file FOLDER/NAME. Throws `fault` for a link that leaves the folder, and
// unread for more than `limit` bytes.
std::string read_hub_file(const std::string& folder, const std::string& name, Code fault,
                          int64_t limit);

}  // namespace troupe
