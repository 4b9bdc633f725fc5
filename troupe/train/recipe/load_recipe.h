// A recipe that is whole and valid, or all that is wrong with it.
#pragma once

#include <string>
#include <vector>

#include "troupe/train/recipe/recipe.h"

namespace troupe {

// load_recipe and validate, with the faults of both in one Error: the values that could be read are
// judged where others could not. A value under an unknown name counts as that of the field which the
// message suggests; what concerns other values that were not read is left out.
Recipe load_valid_recipe(const std::string& path, const std::vector<std::string>& sets,
                         Sources& sources);

}  // namespace troupe
