#include "troupe/train/recipe/foreign/megatron_parts.h"

namespace troupe {

void MegatronScript::field(const std::string& path, const std::string& flag,
                           const std::string& otherwise) const {
  draft.set(path, flags.text(flag, otherwise), flags.origin(flag, otherwise));
}

int64_t MegatronScript::experts() const {
  return flags.whole(megablocks() ? "moe-num-experts" : "num-experts", 0);
}

std::string MegatronScript::layer_list(const std::string& flag,
                                       const std::string& otherwise) const {
  std::string out = flags.text(flag, otherwise);
  std::erase_if(out, [](char c) { return c == '(' || c == ')' || c == ' ' || c == '"'; });
  return out;
}

void MegatronScript::ignore_given(std::initializer_list<const char*> names,
                                  std::string_view why) const {
  for (const char* name : names) {
    if (flags.given(name)) draft.ignore(flags.origin(name), why);
  }
}

}  // namespace troupe
