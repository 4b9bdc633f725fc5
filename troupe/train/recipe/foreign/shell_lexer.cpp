#include "troupe/train/recipe/foreign/shell_lexer.h"

#include <algorithm>
#include <array>

#include "troupe/train/recipe/foreign/shell_letters.h"
#include "troupe/train/recipe/foreign/shell_pieces.h"

namespace troupe {

void ShellLexer::step(size_t count) {
  const size_t end = std::min(at_ + count, text_.size());
  for (; at_ < end; ++at_) line_ += text_[at_] == '\n';
}

void ShellLexer::blanks() {
  for (;;) {
    if (is_shell_blank(peek())) {
      step();
    } else if (peek() == '\\' && (peek(1) == '\n' || (peek(1) == '\r' && peek(2) == '\n'))) {
      step(peek(1) == '\r' ? 3 : 2);
    } else if (peek() == '#') {
      while (at_ < text_.size() && peek() != '\n') step();
    } else {
      return;
    }
  }
}

void ShellLexer::skip() {
  for (blanks(); peek() == '\n'; blanks()) end_line();
}

void ShellLexer::end_line() {
  step();
  for (const auto& [command, index] : std::exchange(open_here_, {})) {
    read_here(command->here[index]);
  }
}

// Up to the line that is the document's end, which `text` holds until then.
void ShellLexer::read_here(ShellHere& here) {
  std::string end = std::exchange(here.text, "");
  const bool tabs = end.starts_with('\t');
  if (tabs) end.erase(0, 1);
  here.line = line_;
  while (at_ < text_.size()) {
    const size_t stop = std::min(text_.find('\n', at_), text_.size());
    std::string line = text_.substr(at_, stop - at_);
    step(stop - at_ + 1);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (tabs) line.erase(0, std::min(line.find_first_not_of('\t'), line.size()));
    if (line == end) return;
    here.text += line + '\n';
  }
}

ShellToken ShellLexer::word() {
  ShellToken out{"", line_};
  while (at_ < text_.size() && !is_shell_blank(peek()) && peek() != '\n') {
    const char c = peek();
    const bool array = c == '(' && !bare_ && out.text.ends_with('=') &&
                       shell_assignment(out.text) == out.text.size() - 1;
    const bool process = (c == '<' || c == '>') && peek(1) == '(';
    if (c == '\\' && (peek(1) == '\n' || peek(1) == '\r')) break;
    if (!array && !process && !bare_ && (is_shell_separator(c) || c == '<' || c == '>')) break;
    if (bare_ && (c == ';' || c == '&' || c == '|')) break;
    size_t end = shell_piece_end(text_, at_);
    if (array || process) end = shell_bracket_end(text_, at_ + process);
    out.text.append(text_, at_, end - at_);
    step(end - at_);
  }
  return out;
}

ShellToken ShellLexer::pattern() {
  ShellToken out{"", line_};
  while (at_ < text_.size() && !is_shell_blank(peek()) && peek() != '\n') {
    const size_t end = shell_piece_end(text_, at_);
    out.text.append(text_, at_, end - at_);
    step(end - at_);
  }
  return out;
}

ShellToken ShellLexer::arithmetic() {
  const size_t end = shell_bracket_end(text_, at_);
  ShellToken out{text_.substr(at_ + 2, end > at_ + 4 ? end - at_ - 4 : 0), line_};
  step(end - at_);
  return out;
}

bool ShellLexer::redirection(ShellCommand& command) {
  size_t begin = at_;
  while (begin < text_.size() && is_shell_digit(text_[begin])) {
    ++begin;
  }
  const bool both = begin == at_ && at("&>");
  const char c = begin < text_.size() ? text_[begin] : '\0';
  const bool process = begin + 1 < text_.size() && text_[begin + 1] == '(';
  if (!both && ((c != '<' && c != '>') || process)) return false;
  step(begin - at_ + both);
  if (at("<<") && !at("<<<")) {
    step(2);
    const bool tabs = peek() == '-';
    step(tabs);
    blanks();
    here(word(), tabs, command);
    return true;
  }
  while (peek() == '<' || peek() == '>' || peek() == '&' || peek() == '|') step();
  blanks();
  word();
  return true;
}

void ShellLexer::here(const ShellToken& end, bool tabs, ShellCommand& command) {
  std::string bare;
  for (const char c : end.text) {
    if (c != '\'' && c != '"' && c != '\\') bare += c;
  }
  const bool literal = bare.size() != end.text.size();
  command.here.push_back({(tabs ? "\t" : "") + bare, literal, line_});
  open_here_.emplace_back(&command, command.here.size() - 1);
}

std::string ShellLexer::reserved() const {
  constexpr std::array<std::string_view, 19> kWords = {
      "if",   "then", "elif", "else",     "fi",     "for", "while", "until", "do", "done",
      "case", "esac", "in",   "function", "select", "{",   "}",     "[[",    "!"};
  size_t end = at_;
  while (end < text_.size() && !is_shell_blank(text_[end]) && !is_shell_separator(text_[end]))
    ++end;
  const std::string out = text_.substr(at_, end - at_);
  return std::find(kWords.begin(), kWords.end(), out) == kWords.end() ? "" : out;
}

bool ShellLexer::take(std::string_view what) {
  if (reserved() != what) return false;
  step(what.size());
  return true;
}

}  // namespace troupe
