#include "troupe/train/recipe/foreign/foundry_parts.h"

#include <cmath>

namespace troupe {

void FoundrySettings::field(const std::string& path, const std::string& name,
                            const std::string& otherwise) {
  draft.set(path, tree.text(name, otherwise), tree.origin(name, otherwise));
}

void FoundrySettings::with_default(const std::string& path, const std::string& name,
                                   const std::string& otherwise) {
  if (!tree.given(name)) draft.set(path, otherwise, tree.origin(name, otherwise));
}

std::string FoundrySettings::span(const std::string& name) {
  const std::string text = tree.text(name);
  const auto unit = text.find_last_not_of("abcdefghijklmnopqrstuvwxyz") + 1;
  std::string number = text.substr(0, unit);
  const std::string suffix = unit == text.size() ? "ep" : text.substr(unit);
  double value = 0;
  std::erase(number, '_');
  if (from_text(number, value)) {
    std::string whole = to_text(std::llround(value));
    if (suffix == "ba") return whole;
    if (suffix == "tok") return whole + " tokens";
    if (suffix == "sp") return whole + " samples";
    if (suffix == "dur") return to_text(std::llround(100 * value)) + '%';
    if (suffix == "sec") return whole + "s";
  }
  draft.refuse(tree.origin(name), suffix == "ep"
                                      ? "an epoch is not a length here: give it in ba, tok or sp"
                                      : "a time in ba, tok, sp or dur is expected");
  return {};
}

bool FoundrySettings::in_epochs(const std::string& name) {
  const std::string text = tree.text(name);
  return text.ends_with("ep") || text.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace troupe
