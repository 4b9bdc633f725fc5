// torchtitan's TOML files as a recipe.
#pragma once

#include <string>

#include "troupe/train/recipe/foreign/draft.h"

namespace troupe {

void convert_torchtitan(const std::string& text, const std::string& file, Draft& draft);

}  // namespace troupe
