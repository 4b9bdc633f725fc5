// A file behind a URL, kept in blocks on this machine's disk as they are read.
//
// DIR/<of address, version and size>/<block>: 512 KiB each and their hash, published whole, so that
// ranks of one host and later runs share them, and what a crash or a bad disk left is read anew. A
// block is asked for once, however many threads want it.
//
// Where the server names no version (ETag, Last-Modified), another object of that size could not be
// recognized: its blocks are of this process alone and go when the file is closed.
#pragma once

#include <string>

#include "troupe/data/files/data_file.h"
#include "troupe/data/files/http.h"

namespace troupe {

inline constexpr int64_t kRemoteBlock = 512 << 10;

DataFilePtr find_remote_file(const std::string& url, const RemoteAccess& remote);  // null: 404

}  // namespace troupe
