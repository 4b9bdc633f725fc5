// Any bytes as the header lines of a server's answers: what they say of a range lies within the
// object, and no counted byte is lost.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "troupe/data/files/http_header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  troupe::HttpHeader header;
  for (size_t at = 0; at < size;) {
    const size_t end = text.find('\n', at);
    const size_t next = end == std::string_view::npos ? size : end + 1;
    header.add(text.substr(at, next - at));
    at = next;
    const bool has_range = header.first >= 0 || header.last >= 0 || header.size >= 0;
    if (has_range && !(header.first <= header.last && header.last < header.size)) std::abort();
    if (header.first < -1 || (header.status != 0 && (header.status < 100 || header.status > 999)) ||
        header.version().size() > size) {
      std::abort();
    }
  }
  if (header.bytes != size) std::abort();
  return 0;
}
