// LLM-Foundry's training YAML into a draft.
#pragma once

#include <string>

#include "troupe/train/recipe/foreign/draft.h"

namespace troupe {

void convert_foundry(const std::string& text, const std::string& file, Draft& draft);

}  // namespace troupe
