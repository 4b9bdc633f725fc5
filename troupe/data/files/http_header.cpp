#include "troupe/data/files/http_header.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace troupe {
namespace {

bool is_blank(char c) {
  return std::isspace(static_cast<unsigned char>(c)) != 0;
}

void read_content_range(std::string_view value, HttpHeader& header) {
  constexpr std::string_view kUnit = "bytes ";
  if (!value.starts_with(kUnit)) return;
  value.remove_prefix(kUnit.size());
  const char* at = value.data();
  const char* const end = at + value.size();
  const auto number = [&](int64_t& out) {
    const auto [next, error] = std::from_chars(at, end, out);
    at = next;
    return error == std::errc() && out >= 0;
  };
  const auto mark = [&](char c) { return at != end && *at++ == c; };
  int64_t first = 0, last = 0, size = 0;
  if (!number(first) || !mark('-') || !number(last) || !mark('/') || !number(size)) return;
  if (at != end || last < first || last >= size) return;
  header.first = first;
  header.last = last;
  header.size = size;
}

int64_t status_of(std::string_view line) {
  const std::string_view number = line.substr(std::min(line.find(' '), line.size() - 1) + 1);
  int64_t out = 0;
  std::from_chars(number.data(), number.data() + number.size(), out);
  return out >= 100 && out <= 999 ? out : 0;
}

}  // namespace

bool HttpHeader::add(std::string_view line) {
  bytes += line.size();
  while (!line.empty() && is_blank(line.back())) line.remove_suffix(1);
  if (line.starts_with("HTTP/")) {
    *this = {.status = status_of(line), .bytes = bytes};
    return true;
  }
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos) return false;
  std::string name(line.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const size_t begin = std::min(line.find_first_not_of(" \t", colon + 1), line.size());
  const std::string_view value = line.substr(begin);
  if (name == "etag") etag = value;
  if (name == "last-modified") last_modified = value;
  if (name == "content-range") read_content_range(value, *this);
  return false;
}

}  // namespace troupe
