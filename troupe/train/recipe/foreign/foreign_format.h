// Which program's settings a text holds.
#pragma once

#include <optional>
#include <string>

#include "troupe/core/config/yaml.h"
#include "troupe/train/recipe/foreign/convert_recipe.h"

namespace troupe {

// The map of a text that is YAML or JSON; nothing where it is neither.
std::optional<Yaml> yaml_map(const std::string& text, const std::string& file);

// The value at a path of a map, "model.name"; null: there is none.
const Yaml* yaml_at(const Yaml& map, const std::string& path);

// A format that is not read, by its program's name, and what to do: "torchtitan's Python: ..."; empty
// for all others. The text alone decides, so that --force never makes another program's model.
std::string unread_format(const std::string& text, const std::string& file);

}  // namespace troupe
