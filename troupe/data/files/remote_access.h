// How files behind URLs are read: where they are cached, how long to wait for a server, where that
// is logged, and what ends the wait.
#pragma once

#include <string>

#include "troupe/core/config/facts.h"
#include "troupe/core/file/log.h"
#include "troupe/core/stop.h"
#include "troupe/core/text/units.h"

namespace troupe {

// Where parts of files behind URLs are kept, so that each is asked for once.
struct CacheConfig {
  std::string dir;  // empty: ~/.cache/troupe
  Bytes most = {};  // what is kept of all files together, the newest; 0: everything
  static void visit(auto& c, auto&& f) {
    f("dir", c.dir, "Cache folder; empty: ~/.cache/troupe.");
    f("most", c.most, "Maximum cache size in bytes, the oldest files are removed; 0: no limit.",
      AtMost{int64_t{1} << 60});
  }
};

struct RemoteAccess {
  CacheConfig cache = {};
  Duration timeout = seconds(30);  // data.read_timeout
  Log log = {};                    // a warning for each try that failed
  Log file_log = {};               // what is to be said of a file, once
  StopQuestion stop = {};          // ends a wait within a second, by AskedToStop
};

}  // namespace troupe
