#include "troupe/train/recipe/foreign/convert_recipe.h"

#include <optional>
#include <sstream>

#include "troupe/core/config/yaml.h"
#include "troupe/train/recipe/foreign/draft.h"
#include "troupe/train/recipe/foreign/foundry.h"
#include "troupe/train/recipe/foreign/megablocks.h"
#include "troupe/train/recipe/foreign/megatron.h"
#include "troupe/train/recipe/foreign/torchtitan.h"

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

// A line "[name]" or "[name.name]" of lower-case letters alone, as no script has one.
bool has_table(const std::string& text) {
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    line = line.substr(0, line.find('#'));
    while (!line.empty() && (line.back() == ' ' || line.back() == '\r')) line.pop_back();
    if (line.size() < 3 || line.front() != '[' || line.back() != ']') continue;
    const std::string name = line.substr(1, line.size() - 2);
    if (name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_.") == std::string::npos)
      return true;
  }
  return false;
}

}  // namespace

ForeignKind foreign_kind(const std::string& text) {
  if (text.find("Arguments(") != std::string::npos) return ForeignKind::kMegaBlocks;
  if (has_table(text)) return ForeignKind::kTorchtitan;
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
  if (kind == ForeignKind::kTorchtitan) convert_torchtitan(text, file, draft);
  if (kind == ForeignKind::kMegaBlocks) convert_megablocks(text, file, draft);
  if (kind == ForeignKind::kMegaBlocks) {
    draft.note(
        "a layer's arguments are no run: heads, vocab, data, train and checkpoint are to be "
        "said");
  }
  return draft.finish(kind != ForeignKind::kMegaBlocks);
}

}  // namespace troupe
