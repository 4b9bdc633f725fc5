#include "troupe/train/recipe/foreign/shell_words.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "troupe/core/check.h"
#include "troupe/train/recipe/foreign/shell_condition.h"

namespace troupe {
namespace {

bool is_name(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// The words that a shell does not pass on.
bool is_control(std::string_view word) {
  constexpr std::array<std::string_view, 12> kWords = {"if", "then", "else",  "elif", "fi",   "for",
                                                       "do", "done", "while", "case", "esac", "in"};
  return std::find(kWords.begin(), kWords.end(), word) != kWords.end();
}

// A line `A="$A $A"` doubles what A holds. Of a real script all values together are some KB.
constexpr size_t kMostOfOne = size_t{1} << 20;
constexpr size_t kMostOfAll = size_t{8} << 20;

class Script {
 public:
  Script(const std::string& text, const std::map<std::string, std::string>& given,
         const std::string& file)
      : text_(text), file_(file) {
    for (const auto& [name, value] : given) variables_[name] = {{value, 0}};
  }

  ShellArguments read() {
    while (at_ < text_.size()) read_command();
    ShellArguments out;
    note_unset();
    out.notes = std::move(notes_);
    for (const auto& command : commands_) {
      const auto program = std::find_if(command.begin(), command.end(),
                                        [](const ShellWord& w) { return w.text.ends_with(".py"); });
      if (program == command.end()) continue;
      out.words.assign(program + 1, command.end());
      out.program = program->text;
      return out;
    }
    for (const auto& command : commands_) {
      out.words.insert(out.words.end(), command.begin(), command.end());
    }
    if (!out.words.empty()) return out;
    for (const std::string& name : array_order_) {
      const auto& words = variables_[name];
      out.words.insert(out.words.end(), words.begin(), words.end());
    }
    return out;
  }

 private:
  using Words = std::vector<ShellWord>;

  char peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  char take() {
    const char c = text_[at_++];
    line_ += c == '\n';
    return c;
  }

  // Blanks, continued lines and comments; not the end of a line.
  void skip_blanks() {
    for (;;) {
      if (peek() == ' ' || peek() == '\t' || peek() == '\r') {
        take();
      } else if (peek() == '\\' && (peek(1) == '\n' || (peek(1) == '\r' && peek(2) == '\n'))) {
        while (take() != '\n') continue;
      } else if (peek() == '#') {
        while (at_ < text_.size() && peek() != '\n') take();
      } else {
        return;
      }
    }
  }

  bool at_command_end() const {
    const char c = peek();
    return c == '\0' || c == '\n' || c == ';' || c == '&' || c == '|' || c == '(' || c == ')';
  }

  // An `if` that is open: whether one of its branches has run, and whether this one does.
  struct Branch {
    bool taken = false, runs = false;
  };
  bool runs() const {
    return !skipped_ && std::all_of(branches_.begin(), branches_.end(),
                                    [](const Branch& branch) { return branch.runs; });
  }

  void read_command() {
    Words command;
    bool begin = true;
    for (skip_blanks(); !at_command_end(); skip_blanks()) {
      if (begin && read_assignment()) continue;
      const int line = line_;
      if (command.empty() && peek() == '[') {
        tested_ = test(line, "[");
        break;
      }
      Words words = read_word();
      begin = begin && words.size() == 1 &&
              (words[0].text == "export" || words[0].text == "then" || words[0].text == "do" ||
               words[0].text == "local");
      if (words.size() == 1 && is_control(words[0].text) && command.empty()) {
        if (control(words[0].text, line)) {
          begin = true;
          continue;
        }
        break;
      }
      command.insert(command.end(), words.begin(), words.end());
    }
    const bool ran = runs();
    end_command();
    if (!ran || command.empty() || command[0].text == "export" || command[0].text == "set" ||
        command[0].text == "echo" || command[0].text == "cd" || command[0].text == "mkdir") {
      return;
    }
    commands_.push_back(std::move(command));
  }

  // Takes the end of a command; after a test, && and || decide whether the next one runs.
  void end_command() {
    const bool both = peek() == '&' && peek(1) == '&', either = peek() == '|' && peek(1) == '|';
    skipped_ = tested_ && ((both && !*tested_) || (either && *tested_));
    if (!both && !either) tested_.reset();
    if (both || either) take();
    if (at_ < text_.size()) take();
  }

  // Whether a command may begin after the word.
  bool control(const std::string& word, int line) {
    if (word == "if") {
      const bool run = runs() && test(line, word);
      if (!run) skip_line();
      branches_.push_back({run, run});
    } else if (word == "elif" && !branches_.empty()) {
      branches_.back().runs = true;  // the condition's own variables count where the `if` runs
      const bool run = !branches_.back().taken && runs() && test(line, word);
      if (!run) skip_line();
      branches_.back() = {branches_.back().taken || run, run};
    } else if (word == "else" && !branches_.empty()) {
      branches_.back() = {true, !branches_.back().taken};
    } else if (word == "fi" && !branches_.empty()) {
      branches_.pop_back();
    }
    if (word == "then" || word == "do" || word == "else") return true;
    if ((word == "for" || word == "case" || word == "while") && runs()) note_condition(line, word);
    if (word != "if" && word != "elif") skip_line();
    return false;
  }

  void skip_line() {
    while (at_ < text_.size() && peek() != '\n' && peek() != ';') take();
  }

  // The rest of a condition, up to the end of its command; what is no test counts as true.
  bool test(int line, const std::string& word) {
    std::vector<TestWord> words;
    in_test_ = true;
    const bool list = word != "[";  // of an if: && and || may stand between brackets
    for (skip_blanks(); at_ < text_.size(); skip_blanks()) {
      const char c = peek();
      if (c == '\n' || c == ';' || c == '\0') break;
      if ((c == '&' || c == '|') && peek(1) == c) {
        if (!list && !words.empty() && words.back().text == "]") break;
        if (!list && !words.empty() && words.back().text == "]]") break;
        words.push_back({{take(), take()}, false});
      } else if (c == '(' || c == ')' || c == '&' || c == '|') {
        words.push_back({{take()}, false});
      } else {
        const bool quoted = c == '"' || c == '\'';
        const std::string text = joined_word(read_word(/*split=*/false));
        words.push_back({text, quoted});
      }
    }
    in_test_ = false;
    if (const auto value = shell_test(words)) return *value;
    note_condition(line, word);
    return true;
  }

  void note_condition(int line, const std::string& word) {
    notes_.push_back("line " + std::to_string(line) + ": `" + word +
                     "` is not evaluated: what it guards is taken as if it ran");
  }

  void note_unset() {
    if (unset_.empty()) return;
    std::string names;
    for (const std::string& name : unset_) names += (names.empty() ? "$" : ", $") + name;
    notes_.push_back("tests take for empty what is not given: " + names + " (--variable " +
                     *unset_.begin() + "=VALUE)");
  }

  // NAME=word, NAME=(words), NAME+=...
  bool read_assignment() {
    size_t end = at_;
    while (end < text_.size() && is_name(text_[end])) ++end;
    const bool more = end < text_.size() && text_[end] == '+';
    if (end == at_ || end + more >= text_.size() || text_[end + more] != '=') return false;
    const std::string name = text_.substr(at_, end - at_);
    at_ = end + more + 1;
    Words value;
    if (peek() == '(') {
      take();
      if (runs() && arrays_.insert(name).second) array_order_.push_back(name);
      for (skip_array(); peek() != ')' && at_ < text_.size(); skip_array()) {
        const Words words = read_word();
        value.insert(value.end(), words.begin(), words.end());
      }
      if (at_ < text_.size()) take();
    } else {
      const int line = line_;
      value = {{joined_word(read_word(/*split=*/false)), line}};
    }
    if (!runs()) return true;
    Words& old = variables_[name];
    size_t& held = held_[name];
    if (!more) old.clear(), held = 0;
    for (const ShellWord& word : value) held += word.text.size() + sizeof(ShellWord);
    if (held > kMostOfOne) fail_growth(name + " grows over 1 MiB");
    old.insert(old.end(), value.begin(), value.end());
    return true;
  }

  [[noreturn]] void fail_growth(const std::string& what) const {
    fail(Code::kBadValue, file_ + ':' + std::to_string(line_), what,
         "with the values of other variables; a script of arguments holds some KB. Write its value "
         "out, or give the words of the command alone");
  }

  void skip_array() {
    for (skip_blanks(); peek() == '\n'; skip_blanks()) take();
  }

  static std::string joined_word(const Words& words) {
    std::string out;
    for (const ShellWord& word : words) out += (out.empty() ? "" : " ") + word.text;
    return out;
  }

  // One word as it is written; a variable outside quotes may make it several.
  Words read_word(bool split = true) {
    Words out = {{"", line_}};
    const size_t begin = at_;
    while (at_ < text_.size() && !std::isspace(static_cast<unsigned char>(peek()))) {
      const char c = peek();
      if (c == ';' || c == '&' || c == '|' || c == ')' || c == '(') break;
      if (c == '\\') {
        if (peek(1) == '\n' || peek(1) == '\r') break;
        take();
        if (at_ < text_.size()) out.back().text += take();
      } else if (c == '\'') {
        take();
        while (at_ < text_.size() && peek() != '\'') out.back().text += take();
        if (at_ < text_.size()) take();
      } else if (c == '"') {
        read_quoted(out);
      } else if (c == '$') {
        append(out, read_variable(), split, split);
      } else {
        out.back().text += take();
      }
    }
    if (at_ == begin && at_ < text_.size()) take();  // a lone bracket: goes on in any case
    std::erase_if(out, [](const ShellWord& w) { return w.text.empty(); });
    return out;
  }

  void read_quoted(Words& out) {
    take();
    while (at_ < text_.size() && peek() != '"') {
      if (peek() == '\\' && peek(1) == '\n') {
        take(), take();
      } else if (peek() == '\\' && at_ + 1 < text_.size()) {
        take();
        out.back().text += take();
      } else if (peek() == '$') {
        const bool array = text_.compare(at_, 2, "${") == 0 &&
                           text_.substr(at_, text_.find('}', at_) - at_).ends_with("[@]");
        const bool list = array || text_.compare(at_, 2, "$@") == 0;
        append(out, read_variable(), list, false);
      } else {
        out.back().text += take();
      }
    }
    if (at_ < text_.size()) take();
  }

  // What is given of the command line: $1, $2 and on.
  Words positional() const {
    Words out;
    for (int i = 1;; ++i) {
      const auto found = variables_.find(std::to_string(i));
      if (found == variables_.end()) return out;
      out.insert(out.end(), found->second.begin(), found->second.end());
    }
  }

  // $NAME, ${NAME}, ${NAME[@]}, ${NAME:-word}; anything else stays as it is written.
  Words read_variable() {
    const size_t begin = at_;
    take();
    if (peek() == '(') {
      int depth = 0;
      do {
        const char c = take();
        depth += (c == '(') - (c == ')');
      } while (depth > 0 && at_ < text_.size());
      return {{text_.substr(begin, at_ - begin), line_}};
    }
    if (peek() == '#') return take(), Words{{std::to_string(positional().size()), line_}};
    if ((peek() == '@' || peek() == '*') && !positional().empty()) return take(), positional();
    std::string inside;
    if (peek() == '{') {
      while (at_ < text_.size() && peek() != '}') inside += take();
      if (at_ < text_.size()) take();
      inside.erase(0, 1);
    } else {
      while (is_name(peek())) inside += take();
    }
    size_t end = 0;
    while (end < inside.size() && is_name(inside[end])) ++end;
    const std::string name = inside.substr(0, end), rest = inside.substr(end);
    if (const auto found = variables_.find(name); found != variables_.end()) return found->second;
    if (rest.starts_with(":-")) {
      std::string otherwise = rest.substr(2);
      std::erase_if(otherwise, [](char c) { return c == '"' || c == '\''; });
      return {{otherwise, line_}};
    }
    if (in_test_ && !name.empty()) {
      unset_.insert(name);
      return {{"", line_}};
    }
    return {{text_.substr(begin, at_ - begin), line_}};
  }

  // Appends the value of a variable: its `parts` as words of their own, and, outside quotes, split
  // at `blanks`.
  void append(Words& out, const Words& value, bool parts, bool blanks) {
    const size_t before = out.size();
    for (size_t i = 0; i < value.size(); ++i) {
      expanded_ += value[i].text.size();
      if (expanded_ > kMostOfAll) fail_growth("what variables are replaced by grows over 8 MiB");
      if (i > 0) {
        parts ? out.push_back({"", value[i].line}) : void(out.back().text += ' ');
      }
      if (out.back().text.empty()) out.back().line = value[i].line;
      for (const char c : value[i].text) {
        const bool blank = c == ' ' || c == '\n' || c == '\t' || c == '\\';
        if (blanks && blank && value[i].text.find("$(") == std::string::npos) {
          if (!out.back().text.empty()) out.push_back({"", value[i].line});
        } else {
          out.back().text += c;
        }
      }
    }
    expanded_ += (out.size() - before) * sizeof(ShellWord);
  }

  const std::string& text_;
  const std::string& file_;
  size_t at_ = 0;
  int line_ = 1;
  std::map<std::string, Words> variables_;
  std::map<std::string, size_t> held_;  // the bytes of each
  size_t expanded_ = 0;                 // that values of variables have put into words
  std::vector<std::string> array_order_;
  std::set<std::string> arrays_;  // those in it
  std::vector<Words> commands_;
  std::vector<std::string> notes_;
  std::vector<Branch> branches_;
  std::optional<bool> tested_;  // by a test that && or || follows
  bool skipped_ = false;        // the command behind them
  bool in_test_ = false;
  std::set<std::string> unset_;  // that a test asked for
};

}  // namespace

ShellArguments shell_arguments(const std::string& text,
                               const std::map<std::string, std::string>& given,
                               const std::string& file) {
  ShellArguments out = Script(text, given, file).read();
  std::erase_if(out.words, [](const ShellWord& w) { return w.text == "$@" || w.text == "${@}"; });
  return out;
}

}  // namespace troupe
