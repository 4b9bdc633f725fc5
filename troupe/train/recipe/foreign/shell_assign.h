// Assignments of a script, in front of a command or behind `export`: A=1, A+=1, A[key]=1, A=(1 2),
// A=([key]=1).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "troupe/train/recipe/foreign/shell_expand.h"
#include "troupe/train/recipe/foreign/shell_scope.h"
#include "troupe/train/recipe/foreign/shell_syntax.h"

namespace troupe {

class ShellAssign {
 public:
  ShellAssign(ShellScope& scope, ShellExpand& expand, const std::string& file)
      : scope_(scope), expand_(expand), file_(file) {}

  // A variable, or an array's words; `token` is a word for which shell_assignment() finds a sign.
  void assign(const ShellToken& token);
  // export, local, declare, typeset, readonly
  static bool declares(std::string_view command);
  // Such a command with all of its words.
  void declare(const std::vector<ShellToken>& tokens);

 private:
  void assign_array(const std::string& name, const ShellToken& value, bool more);

  ShellScope& scope_;
  ShellExpand& expand_;
  const std::string& file_;
};

}  // namespace troupe
