// The flags that a script gives, as questions: which was given, with which value, and where. What
// was asked for counts as used; the rest is for the table.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/train/recipe/foreign/draft.h"
#include "troupe/train/recipe/foreign/shell_words.h"

namespace troupe {

class Flags {
 public:
  struct Flag {
    std::string name;  // without dashes
    std::vector<std::string> values;
    int line = 0;
  };

  Flags(const std::vector<ShellWord>& words, std::string file, Draft& draft);

  bool given(const std::string& name) { return find(name) != nullptr; }
  bool stands(std::string_view name) const;  // the same, and it does not count as asked for
  std::string text(const std::string& name, const std::string& otherwise = "");
  std::vector<std::string> list(const std::string& name);
  // Refused, and `otherwise`, where the value is no number.
  double number(const std::string& name, double otherwise);
  int64_t whole(const std::string& name, int64_t otherwise);
  // "--name value" and its place, or of a default "--name value, its default".
  Origin origin(const std::string& name, const std::string& otherwise = "");
  // Flags that nobody asked for, in their order; and those that somebody did, each once.
  std::vector<Flag> unused() const;
  std::vector<Flag> used() const;
  Origin origin_of(const Flag& flag) const;

 private:
  const Flag* find(const std::string& name);

  std::string file_;
  Draft& draft_;
  std::vector<Flag> flags_;
  std::set<std::string> used_;
};

}  // namespace troupe
