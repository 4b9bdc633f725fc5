#include "troupe/distributed/world/key_value_store.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "troupe/core/check.h"

namespace troupe {

namespace {

constexpr const char* kStore = "the store";

// The first characters of a text that another program wrote, without control characters, for a
// message of one line.
std::string shown(const std::string& text) {
  constexpr size_t kMost = 40;
  std::string out = text.substr(0, kMost);
  std::ranges::replace_if(
      out, [](char c) { return c < ' ' || c > '~'; }, '?');
  return '"' + out + (text.size() > kMost ? "...\"" : "\"");
}

}  // namespace

int64_t number_of_peer(const std::string& text, const std::string& what) {
  int64_t out = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  if (error == std::errc() && end == text.data() + text.size()) return out;
  fail(Code::kRankLost, kStore, "holds what no rank wrote, instead of", what + ": " + shown(text));
}

std::vector<std::optional<std::string>> peek_each(KeyValueStore& store,
                                                  const std::vector<std::string>& keys) {
  if (keys.empty()) return {};
  using Keys = std::vector<std::string>;
  std::vector<std::optional<std::string>> out;
  if (const std::optional<Keys> all = store.peek_all(keys)) {
    out.assign(all->begin(), all->end());
    return out;
  }
  if (keys.size() == 1) return std::vector(1, std::optional<std::string>());
  const auto middle = keys.begin() + std::ssize(keys) / 2;
  out = peek_each(store, Keys(keys.begin(), middle));
  std::ranges::move(peek_each(store, Keys(middle, keys.end())), std::back_inserter(out));
  return out;
}

int64_t first_end_rank(const std::string& text) {
  return number_of_peer(text.substr(0, text.find(' ')), "the first rank that ended");
}

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
    bool is_size = colon != std::string::npos;
    if (is_size) {
      const auto [end, error] = std::from_chars(text.data() + at, text.data() + colon, size);
      is_size = error == std::errc() && end == text.data() + colon;
    }
    if (!is_size || size > text.size() - colon - 1) {
      fail(Code::kRankLost, kStore,
           "holds what no rank wrote, instead of texts of all ranks:", shown(text));
    }
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
