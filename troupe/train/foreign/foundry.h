// LLM-Foundry's training YAML into a draft.
#pragma once

#include <string>

#include "troupe/train/foreign/draft.h"

namespace troupe {

void convert_foundry(const std::string& text, const std::string& file, Draft& draft);

}  // namespace troupe
