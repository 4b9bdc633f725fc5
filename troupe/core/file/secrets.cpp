#include "troupe/core/file/secrets.h"

#include <algorithm>
#include <cctype>

namespace troupe {
namespace {

constexpr std::string_view kHidden = "***";
constexpr std::string_view kBehind = ",;.:)]}'";  // what closes a sentence, a list, a quotation

// Whether an address cannot go on with text[i].
bool ends_address(std::string_view text, size_t i) {
  const auto c = static_cast<unsigned char>(text[i]);
  if (std::isspace(c) != 0 || std::iscntrl(c) != 0) return true;
  if (std::string_view("\"<>`\\").find(text[i]) != std::string_view::npos) return true;
  if (c != '\'') return false;
  // A password may have one; the one that closes a quotation stands before these.
  return i + 1 == text.size() ||
         std::string_view(" ,;:)]}\"\n\t").find(text[i + 1]) != std::string_view::npos;
}

// The end of user and password, behind their '@'; 0: there are none.
size_t end_of_user(std::string_view address) {
  const std::string_view authority = address.substr(0, address.find_first_of("/?#"));
  const size_t at = authority.rfind('@');
  if (at != std::string_view::npos) return at + 1;
  // "me:pass/word@host": where no port is, a password has been cut.
  const size_t colon = authority.rfind(':');
  if (colon == std::string_view::npos || authority.starts_with('[')) return 0;
  const std::string_view port = authority.substr(colon + 1);
  if (std::ranges::all_of(port, [](unsigned char c) { return std::isdigit(c) != 0; })) return 0;
  const size_t last = address.rfind('@');
  return last == std::string_view::npos ? 0 : last + 1;
}

// "?a=1&b=2" without the values; what has no name goes whole.
void add_query(std::string_view query, std::string& out) {
  while (!query.empty() && kBehind.find(query.back()) != std::string_view::npos) {
    query.remove_suffix(1);
  }
  size_t begin = 0;
  while (begin < query.size()) {
    const size_t end = std::min(query.find_first_of("&;?#", begin + 1), query.size());
    const std::string_view part = query.substr(begin + 1, end - begin - 1);
    const size_t equals = part.find('=');
    out += query[begin];
    if (equals != std::string_view::npos) {
      out.append(part.substr(0, equals + 1)).append(equals + 1 < part.size() ? kHidden : "");
    } else if (!part.empty()) {
      out.append(kHidden);
    }
    begin = end;
  }
}

}  // namespace

std::string without_secrets(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  size_t done = 0;
  for (size_t at = text.find("://"); at != std::string_view::npos; at = text.find("://", done)) {
    const size_t begin = at + 3;
    size_t end = begin;
    while (end < text.size() && !ends_address(text, end)) ++end;
    const std::string_view address = text.substr(begin, end - begin);
    const size_t user = end_of_user(address);
    const size_t query = std::min(address.find_first_of("?#", user), address.size());
    out.append(text.substr(done, begin - done));
    if (user > 0) out.append(kHidden).append("@");
    out.append(address.substr(user, query - user));
    std::string_view rest = address.substr(query);
    add_query(rest, out);
    size_t behind = rest.size();
    while (behind > 0 && kBehind.find(rest[behind - 1]) != std::string_view::npos) --behind;
    out.append(rest.substr(behind));
    done = end;
  }
  return out.append(text.substr(done));
}

bool lacks_secrets(std::string_view url) {
  const auto has = [&](std::string_view mark) { return url.find(mark) != std::string_view::npos; };
  return has("://***@") || has("=***") || has("?***");
}

}  // namespace troupe
