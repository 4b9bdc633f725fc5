// The arguments that a launch script passes to its program, without running anything: assignments,
// arrays, quotes, arithmetic, tests, loops, functions, `eval`, here documents and the script's own
// arguments are evaluated as a shell would; files, other commands and $(...) are not looked at.
#pragma once

#include <map>
#include <set>
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
  std::string script = {};   // another one that it starts, where it names no program
  int line = 0;              // of either
  std::vector<std::string> notes;  // what was not evaluated, with its line
  // Variables that would hold flags, had the script's arguments been given.
  std::set<std::string> open = {};
  std::vector<ShellWord> json = {};  // here documents that it writes to files
};

// What stands behind the first word that ends in ".py", of the first command whose file trains (its
// name has "train" in it), else of the first that has one; without one, all words that belong to no
// assignment; without any, the words of all arrays. `given`: variables from outside, those of the
// command line by their numbers ("1"). A test takes what is neither given nor set for empty, as a
// shell does; tests of files and commands are taken to succeed, which `notes` say. What branches set
// is left open where their test hangs on a value that nobody gives, "A=$1" before "[ $A = b ]".
//
// E2005 names `file` and the line where a script has no end: a variable over 1 MiB, more than 8 MiB
// that values have put into words, 100000 commands, functions over 32 deep in each other.
ShellArguments shell_arguments(const std::string& text,
                               const std::map<std::string, std::string>& given = {},
                               const std::string& file = "the script");

}  // namespace troupe
