#include "troupe/train/recipe/foreign/megatron_parts.h"

#include <algorithm>

namespace troupe {

void MegatronScript::field(const std::string& path, const std::string& flag,
                           const std::string& otherwise) const {
  draft.set(path, flags.text(flag, otherwise), flags.origin(flag, otherwise));
}

bool MegatronScript::deepspeed() const {
  if (flags.stands("moe-num-experts")) return false;
  return flags.stands("moe-train-capacity-factor") || flags.stands("moe-loss-coeff") ||
         flags.stands("moe-expert-parallel-size") ||
         (flags.stands("deepspeed") && !flags.stands("moe-router-topk"));
}

int64_t MegatronScript::experts() const {
  if (deepspeed()) {
    // One for all layers, or one for each that has experts; 1 is a dense model.
    int64_t most = 0;
    for (const std::string& word : flags.list("num-experts")) {
      int64_t count = 0;
      if (from_text(word, count)) most = std::max(most, count);
    }
    return most > 1 ? most : 0;
  }
  return flags.whole(megablocks() ? "moe-num-experts" : "num-experts", 0);
}

std::string MegatronScript::moe_layers() const {
  if (!deepspeed()) return layer_list("moe-layer-freq", "1");
  // The last of each `every` layers.
  const int64_t every = std::max<int64_t>(flags.whole("expert-interval", 2), 1);
  if (every == 1) return "1";
  std::string list;
  for (int64_t i = 1; i <= flags.whole("num-layers", 0); ++i) {
    list += (list.empty() ? "" : ",") + std::string(i % every == 0 ? "1" : "0");
  }
  return '[' + list + ']';
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
