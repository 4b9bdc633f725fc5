// The tests of a shell: [ -n "$3" ], [[ $A == b* && -z $C ]], test "$A" = b.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

struct TestWord {
  std::string text;  // its variables replaced
  bool quoted = false;
};

// What a condition or a command says. A file is taken to exist, another command to succeed, and what
// the script alone does not say to hold: then it is not known.
struct ShellTruth {
  bool holds = true, known = true;
};

// The words of a condition, its brackets among them. `letters`: of shell_matches().
ShellTruth shell_test(const std::vector<TestWord>& words, int64_t& letters);

}  // namespace troupe
