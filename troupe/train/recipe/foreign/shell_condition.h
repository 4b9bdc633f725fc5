// The tests of a shell: [ -n "$3" ], [[ $A == b* && -z $C ]], test "$A" = b.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct TestWord {
  std::string text;  // its variables replaced
  bool quoted = false;
};

// What a condition or a command says. A file is taken to exist, another command to succeed, and what
// the script alone does not say to hold: then it is not known. It waits where the words hold a
// variable or an argument that nobody gives, "${18}".
struct ShellTruth {
  bool holds = true, known = true, waits = false;
};

bool is_open_text(std::string_view text);  // it holds such a one; $(command) is none

// The words of a condition, its brackets among them. `letters`: of shell_matches().
ShellTruth shell_test(const std::vector<TestWord>& words, int64_t& letters);

}  // namespace troupe
