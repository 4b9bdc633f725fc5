#include "troupe/core/text/wrap.h"

#include <algorithm>

namespace troupe {
namespace {

constexpr std::string_view kCommand = ": troupe ";
constexpr int kLeastRoom = 24;

int columns_of(std::string_view text) {
  constexpr auto kBegins = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; };
  return static_cast<int>(std::ranges::count_if(text, kBegins));
}

// One line; `at` columns are taken before it.
void append_wrapped(std::string& out, std::string_view line, int columns, int at, int indent) {
  const size_t command = line.find(kCommand);
  const size_t whole_from = command == line.npos ? line.size() : command + 2;
  size_t from = std::min(line.find_first_not_of(' '), line.size());
  out += line.substr(0, from);  // what an inner line begins with
  at += static_cast<int>(from);
  for (size_t gap = 0; from < line.size();) {
    const size_t end =
        from >= whole_from ? line.size() : std::min(line.find(' ', from), line.size());
    const std::string_view word = line.substr(from, end - from);
    const int width = columns_of(word);
    if (gap > 0 && at + static_cast<int>(gap) + width > columns) {
      out += '\n' + std::string(static_cast<size_t>(indent), ' ');
      at = indent;
    } else {
      out.append(gap, ' ');
      at += static_cast<int>(gap);
    }
    out += word;
    at += width;
    from = std::min(line.find_first_not_of(' ', end), line.size());
    gap = from - end;
  }
}

}  // namespace

std::string wrapped(std::string_view text, int columns, int indent) {
  if (columns - indent < kLeastRoom) return std::string(text);
  std::string out;
  for (size_t from = 0; from <= text.size();) {
    const size_t end = std::min(text.find('\n', from), text.size());
    if (from > 0) out += '\n';
    append_wrapped(out, text.substr(from, end - from), columns, from == 0 ? indent : 0, indent);
    from = end + 1;
  }
  return out;
}

}  // namespace troupe
