#include "troupe/train/recipe/foreign/shell_pattern.h"

#include <algorithm>
#include <cctype>
#include <cstring>

#include "troupe/core/text/text.h"

namespace troupe {
namespace {

// One element of a pattern, at `p`: how long it is, and whether it takes the letter.
struct Element {
  size_t size;
  bool takes;
};
Element element(std::string_view pattern, size_t p, char c) {
  if (pattern[p] == '?') return {1, true};
  if (pattern[p] == '\\' && p + 1 < pattern.size()) return {2, pattern[p + 1] == c};
  const size_t end = pattern[p] == '[' ? pattern.find(']', p + 2) : std::string_view::npos;
  if (end == std::string_view::npos) return {1, pattern[p] == c};
  size_t at = p + 1;
  const bool other = pattern[at] == '!' || pattern[at] == '^';
  bool inside = false;
  for (at += other; at < end; ++at) {
    const bool range = at + 2 < end && pattern[at + 1] == '-';
    inside |= range ? pattern[at] <= c && c <= pattern[at + 2] : pattern[at] == c;
    if (range) at += 2;
  }
  return {end + 1 - p, inside != other};
}

// The last star alone is tried again: each letter is compared at most once for each of the pattern.
std::optional<bool> matches(std::string_view text, std::string_view pattern, int64_t& letters) {
  size_t t = 0, p = 0, star = std::string_view::npos, after = 0;
  while (t < text.size()) {
    const bool bracket = p < pattern.size() && pattern[p] == '[';
    letters -= bracket ? static_cast<int64_t>(pattern.size() - p) : 1;
    if (letters < 0) return std::nullopt;
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++, after = t;
      continue;
    }
    const Element e = p < pattern.size() ? element(pattern, p, text[t]) : Element{0, false};
    if (e.takes) {
      p += e.size, ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1, t = ++after;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

// Without the shortest, or the longest, part at one end that fits.
std::optional<std::string> cut(const std::string& value, std::string_view pattern, bool front,
                               bool longest, int64_t& letters) {
  const size_t n = value.size();
  for (size_t i = 0; i <= n; ++i) {
    const size_t size = longest ? n - i : i;
    const std::string_view part =
        front ? std::string_view(value).substr(0, size) : std::string_view(value).substr(n - size);
    const std::optional<bool> fits = matches(part, pattern, letters);
    if (!fits) return std::nullopt;
    if (*fits) return front ? value.substr(size) : value.substr(0, n - size);
  }
  return value;
}

// The pattern as letters where it has no sign of one.
std::optional<std::string> replaced(const std::string& value, std::string_view what) {
  const bool all = what.starts_with('/');
  if (all) what.remove_prefix(1);
  const size_t slash = what.find('/');
  const std::string pattern(what.substr(0, slash));
  const std::string with(slash == std::string_view::npos ? "" : what.substr(slash + 1));
  if (pattern.empty()) return value;
  if (pattern.find_first_of("*?[\\") != std::string::npos) return std::nullopt;
  std::string out;
  for (size_t at = 0;;) {
    const size_t next = shell_find(value, pattern, at);
    out.append(value, at, next == std::string::npos ? next : next - at);
    if (next == std::string::npos) return out;
    out += with;
    at = next + pattern.size();
    if (!all) return out.append(value, at);
  }
}

std::optional<std::string> slice(const std::string& value, std::string_view what) {
  const size_t colon = what.find(':');
  int64_t first = 0, count = static_cast<int64_t>(value.size());
  std::string begin(what.substr(0, colon));
  std::erase_if(begin, [](char c) { return c == ' '; });
  if (!from_text(begin, first)) return std::nullopt;
  if (colon != std::string_view::npos && !from_text(std::string(what.substr(colon + 1)), count))
    return std::nullopt;
  const auto size = static_cast<int64_t>(value.size());
  first = std::clamp<int64_t>(first < 0 ? size + first : first, 0, size);
  const int64_t end = count < 0 ? size + count : first + std::min(count, size - first);
  return end < first ? std::nullopt : std::optional(value.substr(first, end - first));
}

std::string in_case(std::string value, bool upper, bool all) {
  const size_t count = all ? value.size() : std::min<size_t>(value.size(), 1);
  for (size_t i = 0; i < count; ++i) {
    const auto c = static_cast<unsigned char>(value[i]);
    value[i] = static_cast<char>(upper ? std::toupper(c) : std::tolower(c));
  }
  return value;
}

}  // namespace

std::optional<bool> shell_matches(std::string_view text, std::string_view pattern,
                                  int64_t& letters) {
  return matches(text, pattern, letters);
}

size_t shell_find(std::string_view text, std::string_view what, size_t from) {
  const void* const found =
      ::memmem(text.data() + from, text.size() - from, what.data(), what.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

std::optional<std::string> shell_operation(const std::string& value, const std::string& operation,
                                           int64_t& letters) {
  const char kind = operation.empty() ? '\0' : operation[0];
  const bool twice = operation.size() > 1 && operation[1] == kind;
  const std::string_view rest =
      std::string_view(operation).substr(std::min<size_t>(operation.size(), twice ? 2 : 1));
  if (kind == '#' || kind == '%') return cut(value, rest, kind == '#', twice, letters);
  if (kind == '/') return replaced(value, std::string_view(operation).substr(1));
  if (kind == ':') return slice(value, rest);
  if ((kind == '^' || kind == ',') && rest.empty()) return in_case(value, kind == '^', twice);
  return std::nullopt;
}

}  // namespace troupe
