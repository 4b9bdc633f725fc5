// What a script's words are replaced by: variables, arrays, arguments; and how much that may become.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "troupe/train/recipe/foreign/shell_words.h"

namespace troupe {

class ShellScope {
 public:
  using Words = std::vector<ShellWord>;

  // Arguments are `given` by their numbers.
  ShellScope(const std::map<std::string, std::string>& given, const std::string& file);

  // Variables that hold flags, "--bf16 --lr 1e-4", in the order of their lines.
  std::vector<std::pair<std::string, ShellWord>> texts_of_flags() const;
  const Words* find(const std::string& name) const;  // null: not set; "NAME[key]" of a named array
  void set(const std::string& name, Words value, bool more);
  void set_element(const std::string& name, const std::string& key, const ShellWord& value,
                   bool more);
  void declare_keyed(const std::string& name) { keyed_.insert(name); }
  bool is_keyed(const std::string& name) const { return keyed_.contains(name); }
  void unset(const std::string& name);
  // The next functions' end gives `name` the value back that it has now.
  void keep_local(const std::string& name);

  // Arguments of the script or of the function that runs; one that is not given has no value.
  using Arguments = std::vector<std::optional<std::string>>;
  const Arguments& arguments() const { return arguments_; }
  void set_arguments(Arguments arguments);
  size_t num_given() const { return num_given_; }  // up to the first that is not given
  Words given_arguments();

  struct Frame {
    Arguments arguments;
    size_t num_given = 0;
    std::map<std::string, std::optional<Words>> locals;
  };
  void enter(const Words& words);
  void leave();
  size_t depth() const { return frames_.size(); }

  // Bytes that values and words have become; E2005 where that has no end.
  void count_value(size_t bytes);
  void count_words(size_t bytes);
  void count_work(size_t steps);  // of commands over what was counted before: words, letters
  void count_command();
  [[noreturn]] void fail_growth(const std::string& what) const;

  int line = 1;          // that is being read
  bool in_test = false;  // what is not set counts as empty, and is noted
  std::set<std::string> unset_names;
  int64_t letters_left = 16'000'000;  // that patterns may still be compared with

  void add_array(const std::string& name);
  const std::vector<std::string>& arrays() const { return arrays_; }  // as they came

 private:
  std::map<std::string, Words> variables_;
  std::map<std::string, size_t> held_;  // the bytes of each
  std::set<std::string> keyed_, array_names_;
  std::vector<std::string> arrays_;
  Arguments arguments_;
  size_t num_given_ = 0;
  std::vector<Frame> frames_;
  const std::string& file_;
  size_t values_ = 0, words_ = 0, commands_ = 0, work_ = 0;
};

}  // namespace troupe
