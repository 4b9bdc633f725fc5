// The arguments that a launch script passes to its program, without running anything: assignments,
// arrays, quotes, continued lines, $NAME and tests ([ -n "$3" ], [[ $A == b && -z $C ]]) are read;
// files, other commands and $(...) are not looked at.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace troupe {

struct ShellWord {
  std::string text;  // a variable that the script does not set stays as it is written: "$4"
  int line = 0;
};

struct ShellArguments {
  std::vector<ShellWord> words;
  std::string program = {};  // "third_party/Megatron-LM/pretrain_gpt.py"; empty: none is named
  std::vector<std::string> notes;  // what was not evaluated, with its line
};

// What stands behind the first word that ends in ".py"; without one, all words that belong to no
// assignment; without any, the words of all arrays. `given`: variables from outside, those of the
// command line by their numbers ("1"). A test takes what is neither given nor set for empty, as a
// shell does. E2005 names `file` and the line where variables grow without end: one over 1 MiB, or
// more than 8 MiB that their values have put into words.
ShellArguments shell_arguments(const std::string& text,
                               const std::map<std::string, std::string>& given = {},
                               const std::string& file = "the script");

}  // namespace troupe
