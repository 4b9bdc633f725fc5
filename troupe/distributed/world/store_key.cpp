#include "troupe/distributed/world/store_key.h"

#include <cstddef>
#include <span>

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"

namespace troupe {

std::string short_name(const std::string& name, size_t most) {
  constexpr size_t kHashed = 33;  // a hyphen and 32 digits
  TROUPE_CHECK(most > kHashed, "a name of", most, "bytes has no room for a hash");
  if (name.size() <= most) return name;
  return name.substr(0, most - kHashed) + '-' + hex(hash128(std::as_bytes(std::span(name))));
}

std::string group_key(const std::string& backend, const std::vector<int64_t>& ranks,
                      const std::string& channel) {
  TROUPE_CHECK(!ranks.empty(), "a group has ranks");
  return backend + '/' + std::to_string(ranks.front()) + '-' + std::to_string(ranks.back()) + '.' +
         std::to_string(ranks.size()) + '-' + hex(hash128(std::as_bytes(std::span(ranks)))) + '/' +
         short_name(channel, kLongestChannel);
}

}  // namespace troupe
