// What the header of a server's answer says, line by line, as far as reading ranges needs it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace troupe {

struct HttpHeader {
  int64_t status = 0;                         // 0: no number from 100 to 999
  int64_t first = -1, last = -1;              // of the range that it says it has, in order
  int64_t size = -1;                          // of the whole object; the range is within it
  std::string etag = {}, last_modified = {};  // "": it does not say
  size_t bytes = 0;                           // of all lines, of all answers

  const std::string& version() const { return etag.empty() ? last_modified : etag; }

  // A line, with its end. The last of several answers, as "100 Continue" makes them, counts:
  // true where one begins. A Content-Range that is not "bytes FIRST-LAST/SIZE" says nothing.
  bool add(std::string_view line);
};

}  // namespace troupe
