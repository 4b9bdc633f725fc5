// The help of recipe keys, for `config explain`, editors and the reference. A key's text stands
// beside its field, in visit() of its config.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "troupe/core/config/config_describe.h"

namespace troupe {

// Path, help, type, default, other programs' names, and the fields beside it. `key` is a path, the
// end of one, another program's name, or a part of several names: then path and help of each.
// Throws E2003 with the nearest name where there is none.
std::string explain_key(const std::string& key);

void write_recipe_schema(std::ostream& os);

// A Markdown table for each section of a recipe: key, type, default, help.
void write_recipe_keys(std::ostream& os);

std::vector<FieldInfo> recipe_fields();

}  // namespace troupe
