#include "troupe/train/recipe/foreign/torchtitan_parts.h"

namespace troupe {

void TorchtitanSettings::field(const std::string& path, const std::string& name,
                               const std::string& otherwise) {
  draft.set(path, tree.text(name, otherwise), tree.origin(name, otherwise));
}

void TorchtitanSettings::field_if_given(const std::string& path, const std::string& name) {
  if (tree.given(name)) field(path, name, "");
}

void TorchtitanSettings::only(const std::string& name, bool wanted, std::string_view why) {
  if (!tree.given(name)) return;
  const Origin from = tree.origin(name);
  if (tree.yes(name, wanted) == wanted) return draft.ignore(from, why);
  draft.refuse(from, std::string(why));
}

}  // namespace troupe
