// A recipe that is being written out of another program's settings, and what became of each.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "troupe/train/recipe/foreign/convert_recipe.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {

// One setting as it was given: what it is called there, and where.
struct Origin {
  std::string text;   // "--num-layers 32"
  std::string place;  // "run.sh:12"; empty: the other program's default
};

class Draft {
 public:
  // A line of the recipe: `value` is YAML. A value that the field cannot take, or that would not stay
  // in its line, is refused; one with a variable in it that the file does not set is left to be
  // filled in.
  void set(const std::string& path, const std::string& value, const Origin& origin);
  void set_text(const std::string& path, const std::string& text, const Origin& origin);
  void ignore(const Origin& origin, std::string_view why);
  void refuse(const Origin& origin, const std::string& why, Code code = Code::kBadValue);
  // A key or a flag (`kind`) that is not `known`, with the nearest that is, `mark` before it.
  void refuse_unknown(const Origin& origin, std::string_view kind, std::string_view name,
                      const std::vector<std::string_view>& known, std::string_view mark = "");
  // What asks for a kind of rank that this version does not have: the layout is chosen without it.
  void defer(const Origin& origin, std::string_view why);
  // What another file says that is not read.
  void leave_out(const Origin& origin, std::string_view why);
  // What is done by a command beside the run, which the recipe names at its top.
  void beside(const std::vector<Origin>& origins, const std::string& command);
  void note(const std::string& text) { out_.notes.push_back(text); }

  bool tells(std::string_view setting) const;  // a line of it names the setting
  bool has(const std::string& path) const { return paths_.contains(path); }
  const Recipe& recipe() const { return recipe_; }  // as far as it is set
  // What a run must say for itself: without it the recipe's default would stand in unseen.
  void need(const std::string& path, std::string_view why);
  // A setting whose value the file leaves to a variable, where no one field of the recipe is it.
  void leave_open(const Origin& origin);
  // Settings that the file leaves to a variable: none is known not to be given, so no default is
  // written from here on.
  void leave_defaults_open(const Origin& origin);

  // The text, and what `check` finds wrong with it, but for what is missing, among `faults`.
  // `whole`: the source describes a run, not a layer.
  Conversion finish(bool whole);

 private:
  struct Line {
    std::string path, value, origin;
  };
  std::string text() const;
  void try_out();
  void miss(const std::string& path, const std::string& why);

  Conversion out_;
  Recipe recipe_;
  std::vector<Line> lines_;
  std::string commands_;  // "# beside the run: ..." lines
  std::set<std::string> paths_, left_open_;
  std::string open_flags_;  // "${moe_options}, ${pr_options}"
  int guesses_ = 0;
};

std::string quoted_yaml(const std::string& text);  // plain where YAML reads it as the same string
std::string quoted_list(const std::vector<std::string>& texts);  // "[a, b]" of such
// "# what: text\n", whatever the text is.
std::string comment_line(std::string_view what, const std::string& text);
std::string number_text(double value);  // shortest

}  // namespace troupe
