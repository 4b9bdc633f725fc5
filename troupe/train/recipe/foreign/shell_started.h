// Commands of the machine that a script starts: texts that they hand to another shell, and which of
// them is the training.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/train/recipe/foreign/shell_scope.h"

namespace troupe {

// Whether a command prints or prepares, and passes nothing to a program.
bool is_idle_command(std::string_view name);
// Whether it runs what its here documents say: a shell, or what starts one elsewhere.
bool reads_here_documents(std::string_view name);
// What the words have another shell read: bash -c TEXT, --wrap=TEXT.
std::optional<std::string> text_for_shell(const ShellScope::Words& words);

class ShellStarted {
 public:
  void add(const ShellScope::Words& words);
  // As shell_arguments() says, but for its notes; `scope` has the arrays that stand in for
  // commands.
  ShellArguments arguments(const ShellScope& scope) const;

 private:
  const ShellScope::Words* training() const;

  std::vector<ShellScope::Words> commands_;
  ShellWord script_;  // another one that is started
};

}  // namespace troupe
