// The arguments that a launch script passes to its program, without running anything: assignments,
// arrays, quotes, continued lines and $NAME are read; conditions and $(...) are not evaluated.
#pragma once

#include <string>
#include <vector>

namespace troupe {

struct ShellWord {
  std::string text;  // a variable that the script does not set stays as it is written: "$4"
  int line = 0;
};

struct ShellArguments {
  std::vector<ShellWord> words;
  std::vector<std::string> notes;  // what was not evaluated, with its line
};

// What stands behind the first word that ends in ".py"; without one, all words that belong to no
// assignment; without any, the words of all arrays.
ShellArguments shell_arguments(const std::string& text);

}  // namespace troupe
