// A TOML document as the same plain data as YAML (yaml.h), for settings of other programs: tables,
// dotted and quoted keys, strings of all four kinds, numbers, booleans, dates, arrays, inline
// tables. Numbers lose their underscores, strings their quotes; arrays of tables are refused.
#pragma once

#include <string>

#include "troupe/core/config/yaml.h"

namespace troupe {

// Throws "file:line: E2001 what"; a key that is written twice is E2002. More than 4 MiB, nesting
// over 64 and over 10,000 values are refused.
Yaml parse_toml(const std::string& text, const std::string& file);

}  // namespace troupe
