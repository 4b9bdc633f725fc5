#include "troupe/train/recipe/foreign/shell_printf.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace troupe {
namespace {

constexpr std::string_view kWidths = "-+ #0123456789.";
constexpr std::string_view kNumbers = "diufeg";

char escaped_letter(char c) {
  return c == 'n' ? '\n' : c == 't' ? '\t' : c;
}

}  // namespace

std::string shell_printed(const std::string& format, const std::vector<ShellWord>& values) {
  std::string out;
  size_t next = 0, before = 0;
  do {
    before = next;
    for (size_t at = 0; at < format.size(); ++at) {
      const bool last = at + 1 == format.size();
      if (format[at] == '\\' && !last) {
        out += escaped_letter(format[++at]);
      } else if (format[at] != '%' || last) {
        out += format[at];
      } else if (format[at + 1] == '%') {
        out += format[++at];
      } else {
        at = std::min(format.find_first_not_of(kWidths, at + 1), format.size() - 1);
        const bool number = kNumbers.find(format[at]) != std::string_view::npos;
        out += next < values.size() ? values[next].text : number ? "0" : "";
        ++next;
      }
    }
  } while (next > before && next < values.size());
  return out;
}

}  // namespace troupe
