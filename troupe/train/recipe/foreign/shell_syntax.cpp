#include "troupe/train/recipe/foreign/shell_syntax.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/train/recipe/foreign/shell_letters.h"

namespace troupe {
namespace {

constexpr int kDeepestCommand = 100;  // commands within commands, and brackets within brackets

bool is_line_blank(char c) {
  return c == ' ' || c == '\t' || c == '\r';
}

size_t closed_by(const std::string& text, size_t at, char end) {
  while (at < text.size() && text[at] != end) at += text[at] == '\\' ? 2 : 1;
  return std::min(at + 1, text.size());
}

size_t piece_end(const std::string& text, size_t at, int depth);

// One behind the bracket that closes the one at `at`.
size_t bracket_end(const std::string& text, size_t at, int depth) {
  const char open = text[at], close = open == '(' ? ')' : '}';
  for (++at; at < text.size() && text[at] != close;) {
    const char before = text[at - 1];
    if (text[at] == '#' && open == '(' && (is_line_blank(before) || before == '\n')) {
      at = std::min(text.find('\n', at), text.size());  // a comment may hold a lone quote
    } else if (text[at] == open && depth < kDeepestCommand) {
      at = bracket_end(text, at, depth + 1);
    } else {
      at = piece_end(text, at, depth + 1);
    }
  }
  return std::min(at + 1, text.size());
}

size_t quoted_end(const std::string& text, size_t at, int depth) {
  for (++at; at < text.size() && text[at] != '"';) {
    const bool plain = text[at] == '\'' || text.compare(at, 2, "$'") == 0;
    at = plain ? at + 1 : piece_end(text, at, depth + 1);
  }
  return std::min(at + 1, text.size());
}

size_t piece_end(const std::string& text, size_t at, int depth) {
  const char c = text[at], next = at + 1 < text.size() ? text[at + 1] : '\0';
  if (c == '\\') return std::min(at + 2, text.size());
  if (depth > kDeepestCommand) return at + 1;
  if (c == '\'') return std::min(text.find('\'', at + 1), text.size() - 1) + 1;
  if (c == '"') return quoted_end(text, at, depth);
  if (c == '`') return closed_by(text, at + 1, '`');
  if (c == '$' && next == '\'') return closed_by(text, at + 2, '\'');
  if (c == '$' && (next == '(' || next == '{')) return bracket_end(text, at + 1, depth);
  return at + 1;
}

bool is_separator(char c) {
  return c == '\n' || c == ';' || c == '&' || c == '|' || c == '(' || c == ')';
}

class ShellParser {
 public:
  ShellParser(const std::string& text, const std::string& file, int line)
      : text_(text), file_(file), line_(line) {}

  ShellList script() {
    // A list of arguments is no command: brackets in it are letters.
    skip();
    bare_ = text_.compare(at_, 2, "--") == 0;
    ShellList out;
    while (at_ < text_.size()) {
      ShellList more = list({});
      std::move(more.begin(), more.end(), std::back_inserter(out));
      if (at_ < text_.size()) step();  // a bracket or a word that closes nothing
    }
    return out;
  }

  std::vector<ShellToken> array() {
    std::vector<ShellToken> out;
    bare_ = true;
    for (skip(); at_ < text_.size(); skip()) {
      const size_t begin = at_;
      out.push_back(word());
      if (at_ == begin) out.back().text += text_[at_], step();
    }
    return out;
  }

 private:
  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool at(std::string_view what) const { return text_.compare(at_, what.size(), what) == 0; }
  void step(size_t count = 1) {
    const size_t end = std::min(at_ + count, text_.size());
    for (; at_ < end; ++at_) line_ += text_[at_] == '\n';
  }

  // Blanks, continued lines and comments.
  void blanks() {
    for (;;) {
      if (is_line_blank(peek())) {
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
  // These, and ends of lines.
  void skip() {
    for (blanks(); peek() == '\n'; blanks()) end_line();
  }
  void end_line() {
    step();
    for (const auto& [command, index] : std::exchange(open_here_, {})) {
      read_here(command->here[index]);
    }
  }

  // Up to the line that is the document's end, which `text` holds until then.
  void read_here(ShellHere& here) {
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

  // A word as it is written, with an array's brackets behind its name.
  ShellToken word() {
    ShellToken out{"", line_};
    while (at_ < text_.size() && !is_line_blank(peek()) && peek() != '\n') {
      const char c = peek();
      const bool array = c == '(' && !bare_ && out.text.ends_with('=') &&
                         shell_assignment(out.text) == out.text.size() - 1;
      const bool process = (c == '<' || c == '>') && peek(1) == '(';
      if (c == '\\' && (peek(1) == '\n' || peek(1) == '\r')) break;
      if (!array && !process && !bare_ && (is_separator(c) || c == '<' || c == '>')) break;
      if (bare_ && (c == ';' || c == '&' || c == '|')) break;
      size_t end = shell_piece_end(text_, at_);
      if (array || process) end = bracket_end(text_, at_ + process, 0);
      out.text.append(text_, at_, end - at_);
      step(end - at_);
    }
    return out;
  }

  // ">log", "2>&1", "&>>log", "<<EOF": nothing of it is a word of the command.
  bool redirection(ShellCommand& command) {
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

  void here(const ShellToken& end, bool tabs, ShellCommand& command) {
    std::string bare;
    for (const char c : end.text) {
      if (c != '\'' && c != '"' && c != '\\') bare += c;
    }
    const bool literal = bare.size() != end.text.size();
    command.here.push_back({(tabs ? "\t" : "") + bare, literal, line_});
    open_here_.emplace_back(&command, command.here.size() - 1);
  }

  // The word that begins here, if it is one of a shell's own.
  std::string reserved() const {
    constexpr std::array<std::string_view, 19> kWords = {
        "if",   "then", "elif", "else",     "fi",     "for", "while", "until", "do", "done",
        "case", "esac", "in",   "function", "select", "{",   "}",     "[[",    "!"};
    size_t end = at_;
    while (end < text_.size() && !is_line_blank(text_[end]) && !is_separator(text_[end])) ++end;
    const std::string out = text_.substr(at_, end - at_);
    return std::find(kWords.begin(), kWords.end(), out) == kWords.end() ? "" : out;
  }
  bool take(std::string_view what) {
    if (reserved() != what) return false;
    step(what.size());
    return true;
  }

  using Ends = std::vector<std::string_view>;

  ShellList list(const Ends& ends) {
    ShellList out;
    ShellJoin join = ShellJoin::kAlways;
    for (;;) {
      skip();
      while (peek() == ';' || peek() == '&' || peek() == '|') {
        if (at(";;")) return out;
        step();
        skip();
      }
      if (at_ >= text_.size() || peek() == ')') return out;
      const std::string here = reserved();
      if (std::find(ends.begin(), ends.end(), here) != ends.end() && !here.empty()) return out;
      if (is_stray(here)) {
        step(here.size());
        continue;
      }
      ShellStep one{join, false, nullptr};
      for (; take("!"); blanks()) one.negated = !one.negated;
      one.command = command();
      out.push_back(std::move(one));
      join = next_join();
    }
  }

  static bool is_stray(std::string_view word) {
    constexpr std::array<std::string_view, 9> kWords = {"then", "elif", "else", "fi", "do",
                                                        "done", "esac", "in",   "}"};
    return std::find(kWords.begin(), kWords.end(), word) != kWords.end();
  }

  ShellJoin next_join() {
    blanks();
    const bool both = at("&&"), either = at("||");
    if (both || either) step(2);
    return both ? ShellJoin::kAnd : either ? ShellJoin::kOr : ShellJoin::kAlways;
  }

  std::unique_ptr<ShellCommand> command() {
    if (++depth_ > kDeepestCommand) {
      fail(Code::kBadValue, file_ + ':' + std::to_string(line_), "has commands over",
           std::to_string(kDeepestCommand), "deep in each other");
    }
    auto out = std::make_unique<ShellCommand>();
    out->line = line_;
    const std::string word = reserved();
    if (word == "if") {
      parse_if(*out);
    } else if (word == "while" || word == "until") {
      parse_while(*out, word);
    } else if (word == "for" || word == "select") {
      parse_for(*out, word);
    } else if (word == "case") {
      parse_case(*out);
    } else if (word == "function") {
      take(word), blanks();
      parse_function(*out, this->word().text);
    } else if (word == "[[") {
      parse_test(*out);
    } else if (at("((")) {
      out->kind = ShellCommand::kArithmetic;
      out->words = {arithmetic()};
    } else if (word == "{" || peek() == '(') {
      step();
      group(*out, word == "{" ? "}" : ")");
    } else {
      simple(*out);
    }
    for (blanks(); out->kind != ShellCommand::kSimple && redirection(*out); blanks()) continue;
    --depth_;
    return out;
  }

  void group(ShellCommand& out, std::string_view end) {
    out.kind = ShellCommand::kIf;
    out.branches.emplace_back();
    out.branches.back().body = list(end == "}" ? Ends{"}"} : Ends{});
    if (peek() == end[0]) step();
  }

  void simple(ShellCommand& out) {
    for (blanks();; blanks()) {
      if (at_ >= text_.size() || redirection(out)) {
        if (at_ >= text_.size()) return;
        continue;
      }
      const char c = peek();
      if (is_separator(c) && !(bare_ && (c == '(' || c == ')'))) break;
      const size_t begin = at_;
      out.words.push_back(word());
      if (at_ == begin) step();
    }
    if (peek() != '(') return;
    if (out.words.size() != 1) return step();  // a bracket that opens nothing
    const std::string name = std::exchange(out.words, {})[0].text;
    parse_function(out, name);
  }

  void parse_function(ShellCommand& out, const std::string& name) {
    out.kind = ShellCommand::kFunction;
    out.name = name;
    blanks();
    if (peek() == '(') step(), blanks();
    if (peek() == ')') step();
    skip();
    out.branches.emplace_back();
    if (at_ >= text_.size()) return;
    out.branches.back().body.push_back({ShellJoin::kAlways, false, command()});
  }

  void parse_if(ShellCommand& out) {
    out.kind = ShellCommand::kIf;
    take("if");
    for (;;) {
      ShellBranch branch;
      branch.condition = list({"then", "fi", "else", "elif"});
      take("then");
      branch.body = list({"elif", "else", "fi"});
      out.branches.push_back(std::move(branch));
      if (take("elif")) continue;
      if (take("else")) {
        out.branches.emplace_back();
        out.branches.back().body = list({"fi"});
      }
      take("fi");
      return;
    }
  }

  void parse_while(ShellCommand& out, const std::string& word) {
    out.kind = ShellCommand::kWhile;
    out.name = word;
    take(word);
    ShellBranch branch;
    branch.condition = list({"do", "done"});
    take("do");
    branch.body = list({"done"});
    take("done");
    out.branches.push_back(std::move(branch));
  }

  void parse_for(ShellCommand& out, const std::string& word) {
    out.kind = ShellCommand::kFor;
    take(word);
    blanks();
    if (at("((")) {
      out.kind = ShellCommand::kForArithmetic;
      out.words = {arithmetic()};
    } else {
      out.name = this->word().text;
      skip();
      out.listed = take("in");
      for (blanks(); out.listed && at_ < text_.size() && !is_separator(peek()); blanks()) {
        const size_t begin = at_;
        out.words.push_back(this->word());
        if (at_ == begin) step();
      }
    }
    skip();
    while (peek() == ';') step(), skip();
    const bool braces = take("{");
    if (!braces) take("do");
    out.branches.emplace_back();
    out.branches.back().body = list({braces ? "}" : "done"});
    take(braces ? "}" : "done");
  }

  void parse_case(ShellCommand& out) {
    out.kind = ShellCommand::kCase;
    take("case");
    blanks();
    out.words = {word()};
    skip();
    take("in");
    for (skip(); at_ < text_.size() && !take("esac"); skip()) {
      const size_t begin = at_;
      ShellBranch branch;
      if (peek() == '(') step();
      for (blanks(); at_ < text_.size() && peek() != ')' && peek() != '\n'; blanks()) {
        const size_t pattern = at_;
        if (peek() != '|') branch.patterns.push_back(word());
        if (at_ == pattern) step();
      }
      if (peek() == ')') step();
      branch.body = list({"esac"});
      while (peek() == ';' || peek() == '&') step();
      out.branches.push_back(std::move(branch));
      if (at_ == begin) step();
    }
  }

  // [[ ... ]]: &&, ||, brackets and signs are words of it.
  void parse_test(ShellCommand& out) {
    out.kind = ShellCommand::kTest;
    while (at_ < text_.size()) {
      skip();
      const char c = peek();
      if (c == ';') return;
      if (at("&&") || at("||")) {
        out.words.push_back({text_.substr(at_, 2), line_});
        step(2);
      } else if (is_separator(c) || ((c == '<' || c == '>') && peek(1) != '(')) {
        out.words.push_back({std::string(1, c), line_});
        step();
      } else {
        out.words.push_back(word());
        if (out.words.back().text == "]]") return;
        // A pattern may hold brackets and bars.
        if (out.words.back().text == "=~") blanks(), out.words.push_back(pattern());
      }
    }
  }
  ShellToken pattern() {
    ShellToken out{"", line_};
    while (at_ < text_.size() && !is_line_blank(peek()) && peek() != '\n') {
      const size_t end = shell_piece_end(text_, at_);
      out.text.append(text_, at_, end - at_);
      step(end - at_);
    }
    return out;
  }

  // What stands between (( and )).
  ShellToken arithmetic() {
    const size_t end = bracket_end(text_, at_, 0);
    ShellToken out{text_.substr(at_ + 2, end > at_ + 4 ? end - at_ - 4 : 0), line_};
    step(end - at_);
    return out;
  }

  const std::string& text_;
  const std::string& file_;
  size_t at_ = 0;
  int line_, depth_ = 0;
  bool bare_ = false;  // brackets are letters
  std::vector<std::pair<ShellCommand*, size_t>> open_here_;
};

}  // namespace

ShellList parse_shell(const std::string& text, const std::string& file, int line) {
  return ShellParser(text, file, line).script();
}

std::vector<ShellToken> shell_array_words(const std::string& text, const std::string& file,
                                          int line) {
  return ShellParser(text, file, line).array();
}

size_t shell_piece_end(const std::string& text, size_t at) {
  return piece_end(text, at, 0);
}

size_t shell_assignment(const std::string& word) {
  size_t end = 0;
  while (end < word.size() && is_shell_name(word[end])) ++end;
  if (end == 0 || is_shell_digit(word[0])) return std::string::npos;
  if (end < word.size() && word[end] == '[')
    end = std::min(word.find(']', end), word.size() - 1) + 1;
  if (end < word.size() && word[end] == '+') ++end;
  return end < word.size() && word[end] == '=' ? end : std::string::npos;
}

}  // namespace troupe
