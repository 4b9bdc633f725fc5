#include "troupe/checkpoint/hf/hf_modules.h"

#include <algorithm>
#include <string_view>

namespace troupe {
namespace {

// "a.b.c" and "a.b.d" have "a.b" in common.
std::string_view common_module(std::string_view a, std::string_view b) {
  const auto [end, other] = std::ranges::mismatch(a, b);
  const auto same = static_cast<size_t>(end - a.begin());
  const auto ends_at = [&](std::string_view name) {
    return same == name.size() || name[same] == '.';
  };
  if (ends_at(a) && ends_at(b)) return a.substr(0, same);
  const size_t dot = a.substr(0, same).rfind('.');
  return dot == std::string_view::npos ? std::string_view() : a.substr(0, dot);
}

}  // namespace

std::map<std::string, std::string> hf_modules(const std::vector<HfTensor>& table) {
  std::map<std::string, std::string> out;
  for (const HfTensor& t : table) {
    if (t.name.ends_with(".balance_bias")) continue;  // some have it beside the router's module
    for (const HfPiece& piece : t.pieces) {
      const std::string module = piece.name.substr(0, piece.name.rfind('.'));
      for (size_t end = t.name.size(); end != std::string::npos && end > 0;
           end = t.name.rfind('.', end - 1)) {
        const auto [at, added] = out.try_emplace(t.name.substr(0, end), module);
        if (!added) at->second = std::string(common_module(at->second, module));
      }
    }
  }
  out["head"] = "lm_head";  // tied to the embedding or not
  return out;
}

}  // namespace troupe
