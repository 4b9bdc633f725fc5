#include "troupe/train/recipe/foreign/convert_recipe.h"

#include <optional>

#include "troupe/core/config/yaml.h"
#include "troupe/train/recipe/foreign/draft.h"
#include "troupe/train/recipe/foreign/foundry.h"
#include "troupe/train/recipe/foreign/megablocks.h"
#include "troupe/train/recipe/foreign/megatron.h"

namespace troupe {
namespace {

std::optional<Yaml> as_map(const std::string& text) {
  try {
    Yaml y = parse_yaml(text, "");
    return y.kind == Yaml::Kind::kMap ? std::optional(std::move(y)) : std::nullopt;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

ForeignKind foreign_kind(const std::string& text) {
  if (text.find("Arguments(") != std::string::npos) return ForeignKind::kMegaBlocks;
  const std::optional<Yaml> map = as_map(text);
  if (!map) return ForeignKind::kMegatron;
  for (const Yaml::Field& field : map->fields) {
    if (field.name.starts_with("moe_") || field.name == "hidden_size") {
      return ForeignKind::kMegaBlocks;
    }
  }
  return ForeignKind::kFoundry;
}

Conversion convert_recipe(const std::string& text, const std::string& file, ForeignKind kind,
                          const std::map<std::string, std::string>& variables) {
  if (kind == ForeignKind::kAuto) kind = foreign_kind(text);
  Draft draft;
  if (kind == ForeignKind::kMegatron) convert_megatron(text, file, variables, draft);
  if (kind == ForeignKind::kFoundry) convert_foundry(text, file, draft);
  if (kind == ForeignKind::kMegaBlocks) convert_megablocks(text, file, draft);
  if (kind == ForeignKind::kMegaBlocks) {
    draft.note(
        "a layer's arguments are no run: heads, vocab, data, train and checkpoint are to be "
        "said");
  }
  return draft.finish(kind != ForeignKind::kMegaBlocks);
}

}  // namespace troupe
