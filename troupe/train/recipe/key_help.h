// What each field of a recipe means, for `config explain` and for editors.
#pragma once

#include <ostream>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/config/config_describe.h"

namespace troupe {

struct KeyHelp {
  std::string_view path;  // as of FieldInfo
  std::string_view text;  // with range and unit
};
std::span<const KeyHelp> key_help();

// Path, type, default, meaning, other programs' names, and the fields beside it. `key` is a path,
// the end of one, another program's name, or a part of several names: then path and meaning of
// each. Throws E2003 with the nearest where there is none.
std::string explain_key(const std::string& key);

void write_recipe_schema(std::ostream& os);

std::vector<FieldInfo> recipe_fields();

}  // namespace troupe
