// Megatron-LM's flags, and those of MegaBlocks' fork, into a draft.
#pragma once

#include <map>
#include <string>

#include "troupe/train/recipe/foreign/draft.h"

namespace troupe {

void convert_megatron(const std::string& text, const std::string& file,
                      const std::map<std::string, std::string>& variables, Draft& draft);

}  // namespace troupe
