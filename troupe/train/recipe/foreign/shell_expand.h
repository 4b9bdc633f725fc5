// Words of a script as a shell makes them: quotes taken off, variables, arrays, arguments and
// arithmetic replaced. What the script does not set, and $(command), stay as they are written.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "troupe/train/recipe/foreign/shell_condition.h"
#include "troupe/train/recipe/foreign/shell_scope.h"
#include "troupe/train/recipe/foreign/shell_syntax.h"

namespace troupe {

class ShellExpand {
 public:
  explicit ShellExpand(ShellScope& scope) : scope_(scope) {}

  using Words = ShellScope::Words;

  // The words that one becomes: values outside quotes are split at blanks, but not in $(...).
  Words words(const ShellToken& token);
  Words words(const std::vector<ShellToken>& tokens);
  // As one word.
  std::string text(const ShellToken& token);
  // The words of a test ([ ... ] or [[ ... ]]), each with whether a part of it was quoted.
  std::vector<TestWord> tests(const std::vector<ShellToken>& tokens, bool split);
  // A here document's.
  std::string here(const ShellHere& here);

  // Nothing where the text is no arithmetic expression, or names a variable that is not set.
  std::optional<int64_t> arithmetic(const std::string& text);

 private:
  struct Field {
    ShellWord word;
    bool quoted = false;
  };
  // A variable's words, and whether they are a list whose words stay apart in quotes.
  struct Value {
    Words words;
    bool list = false;
  };

  std::vector<Field> fields(const ShellToken& token, bool split);
  void quoted(std::vector<Field>& out, const std::string& text, bool here);
  void append(std::vector<Field>& out, const Value& value, bool parts, bool blanks);
  Value dollar(const std::string& piece);
  std::optional<std::string> echoed(const std::string& command);
  Value parameter(const std::string& inside, const std::string& piece);
  Value of_name(const std::string& name, const std::string& index, bool& set);
  std::optional<Value> otherwise(const Value& value, bool set, const std::string& name,
                                 const std::string& rest);
  Value length(const std::string& name);
  Value unknown(const std::string& name, const std::string& piece);
  Value one(const std::string& text) const { return {{{text, scope_.line}}}; }

  ShellScope& scope_;
  int depth_ = 0;
  char glue_ = ' ';  // between the words of "${list[*]}": the first letter of IFS
};

}  // namespace troupe
