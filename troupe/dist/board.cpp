#include "troupe/dist/board.h"

#include <algorithm>
#include <charconv>

#include "troupe/core/check.h"

namespace troupe {

std::string beat_key(int64_t rank) {
  return "beat/" + std::to_string(rank);
}

std::string joined(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) {
    out.append(std::to_string(text.size())).append(":").append(text);
  }
  return out;
}

std::vector<std::string> parted(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    const size_t colon = text.find(':', at);
    size_t size = 0;
    const bool is_size =
        colon != std::string::npos &&
        std::from_chars(text.data() + at, text.data() + colon, size).ptr == text.data() + colon;
    TROUPE_CHECK(is_size && size <= text.size() - colon - 1, "- joined texts, cut at", at);
    out.push_back(text.substr(colon + 1, size));
    at = colon + 1 + size;
  }
  return out;
}

std::chrono::milliseconds longest_pause(int64_t size) {
  return std::chrono::milliseconds(50 + size / 10);
}

std::chrono::milliseconds next_pause(std::chrono::milliseconds pause, int64_t size) {
  return std::min(2 * pause, longest_pause(size));
}

std::vector<std::string> keys_of_ranks(const std::string& prefix, int64_t size) {
  std::vector<std::string> out;
  for (int64_t r = 0; r < size; ++r) out.push_back(prefix + std::to_string(r));
  return out;
}

}  // namespace troupe
