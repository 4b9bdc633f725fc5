// A script's text from left to right: blanks, comments, words, redirections and here documents,
// with the line that each stands in.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "troupe/train/recipe/foreign/shell_syntax.h"

namespace troupe {

class ShellLexer {
 public:
  ShellLexer(const std::string& text, int line) : text_(text), line_(line) {}

  bool ended() const { return at_ >= text_.size(); }
  size_t position() const { return at_; }
  int line() const { return line_; }
  // Of words that are no commands: brackets are letters.
  bool is_bare() const { return bare_; }
  void set_bare(bool bare) { bare_ = bare; }

  // '\0' behind the end.
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool at(std::string_view what) const { return text_.compare(at_, what.size(), what) == 0; }
  void step(size_t count = 1);

  // Blanks, continued lines and comments.
  void blanks();
  // These, and ends of lines; behind the line that names them, here documents are read.
  void skip();

  // A word as it is written, with an array's brackets behind its name. Empty where none begins.
  ShellToken word();
  // As far as the next blank, brackets and bars included.
  ShellToken pattern();
  // What stands between (( and )).
  ShellToken arithmetic();
  // ">log", "2>&1", "&>>log", "<<EOF": nothing of it is a word of the command, which has to stay
  // where it is until the next line. False: none begins here.
  bool redirection(ShellCommand& command);

  // The word that begins here, if it is one of a shell's own.
  std::string reserved() const;
  // Steps over this one of them, if it begins here.
  bool take(std::string_view what);

 private:
  void end_line();
  void read_here(ShellHere& here);
  void here(const ShellToken& end, bool tabs, ShellCommand& command);

  const std::string& text_;
  size_t at_ = 0;
  int line_;
  bool bare_ = false;
  std::vector<std::pair<ShellCommand*, size_t>> open_here_;
};

}  // namespace troupe
