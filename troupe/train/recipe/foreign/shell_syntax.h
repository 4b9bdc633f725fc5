// A script of a shell as a tree: lists of commands, conditions, loops, functions and here documents.
// Words stay as they are written; nothing is replaced and nothing runs.
//
// It is lenient: a word that ends nothing (a lone `done`) is left out, what is open at the end ends
// there.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace troupe {

struct ShellToken {
  std::string text;  // with its quotes
  int line = 0;
};

struct ShellCommand;

enum class ShellJoin { kAlways, kAnd, kOr };  // how a command follows the one before: ;, && or ||
struct ShellStep {
  ShellJoin join = ShellJoin::kAlways;
  bool negated = false;
  std::unique_ptr<ShellCommand> command;
};
using ShellList = std::vector<ShellStep>;

struct ShellBranch {
  std::vector<ShellToken> patterns;  // of a case
  ShellList condition, body;
};

struct ShellHere {
  std::string text;
  bool literal = false;  // its end was quoted
  int line = 0;          // of its first line
};

struct ShellCommand {
  enum Kind { kSimple, kTest, kArithmetic, kIf, kFor, kForArithmetic, kWhile, kCase, kFunction };
  Kind kind = kSimple;  // a group is an `if` without a condition
  int line = 0;
  std::string name;               // the function, the loop's variable; "until"
  std::vector<ShellToken> words;  // of a simple command or a test, a loop's list, a case's word,
                                  // the text of (( ))
  bool listed = false;            // a loop: it has `in`
  std::vector<ShellBranch> branches;
  std::vector<ShellHere> here;
};

// `line` is the number of the first one. E2005 names `file` where commands stand deeper in each
// other than any script's do.
ShellList parse_shell(const std::string& text, const std::string& file, int line);

// The words between an array's brackets.
std::vector<ShellToken> shell_array_words(const std::string& text, const std::string& file,
                                          int line);

}  // namespace troupe
