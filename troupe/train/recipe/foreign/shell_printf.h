// What a shell's printf makes of its words.
#pragma once

#include <string>
#include <vector>

#include "troupe/train/recipe/foreign/shell_words.h"

namespace troupe {

// The format with its words, as often as there are words left for it; a word that is missing is
// empty, or 0 for a number. Each %s, %d and the like is the word as it stands; widths mean nothing.
std::string shell_printed(const std::string& format, const std::vector<ShellWord>& values);

}  // namespace troupe
