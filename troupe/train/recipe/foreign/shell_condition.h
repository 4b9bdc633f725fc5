// The tests of a shell: [ -n "$3" ], [[ $A == b && -z $C ]], test "$A" = b.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace troupe {

struct TestWord {
  std::string text;  // its variables replaced
  bool quoted = false;
};

// The words of a condition, its brackets among them. Nothing where a word asks for more than
// strings and whole numbers: a file, a pattern, another command.
std::optional<bool> shell_test(const std::vector<TestWord>& words);

}  // namespace troupe
