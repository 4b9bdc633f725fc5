#include "troupe/train/recipe/foreign/shell_words.h"

#include <algorithm>
#include <array>
#include <list>
#include <optional>
#include <set>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/text/text.h"
#include "troupe/train/recipe/foreign/shell_assign.h"
#include "troupe/train/recipe/foreign/shell_expand.h"
#include "troupe/train/recipe/foreign/shell_pattern.h"
#include "troupe/train/recipe/foreign/shell_pieces.h"
#include "troupe/train/recipe/foreign/shell_printf.h"
#include "troupe/train/recipe/foreign/shell_started.h"

namespace troupe {
namespace {

using Words = ShellScope::Words;

constexpr size_t kDeepestText = 16;  // eval in eval, bash -c in bash -c

// Notes each thing that was not evaluated once.
class ShellNotes {
 public:
  void condition(int line, const std::string& word) {
    const std::string note = "line " + std::to_string(line) + ": `" + word +
                             "` asks for more than the script says: files are taken to exist, "
                             "commands to succeed";
    if (noted_.insert(note).second) notes_.push_back(note);
  }

  void unset(const ShellScope& scope) {
    if (scope.unset_names.empty()) return;
    std::string names;
    for (const std::string& name : scope.unset_names) names += (names.empty() ? "$" : ", $") + name;
    notes_.push_back("tests take for empty what is not given: " + names + " (--variable " +
                     *scope.unset_names.begin() + "=VALUE)");
  }

  void open(const std::set<std::string>& values) {
    if (values.empty()) return;
    std::string names;
    for (const std::string& value : values) names += (names.empty() ? "" : ", ") + value;
    notes_.push_back("what tests of values set that nobody gives is left open: " + names +
                     " (--variable NAME=VALUE, or 1=VALUE for the first argument)");
  }

  std::vector<std::string> take() { return std::move(notes_); }

 private:
  std::vector<std::string> notes_;
  std::set<std::string> noted_;
};

class Script {
 public:
  Script(const std::string& text, const std::map<std::string, std::string>& given,
         const std::string& file)
      : text_(text),
        file_(file),
        scope_(given, file),
        expand_(scope_),
        assign_(scope_, expand_, file_) {}

  ShellArguments read() {
    run_text(text_, 1);
    notes_.unset(scope_);
    notes_.open(waiting_);
    ShellArguments out = started_.arguments(scope_);
    const std::vector<std::string> notes = notes_.take();
    out.notes.insert(out.notes.end(), notes.begin(), notes.end());
    out.open = std::move(open_);
    out.json = std::move(json_);
    return out;
  }

 private:
  enum class Flow { kNext, kBreak, kContinue, kReturn, kExit };

  // The trees stay: a function outlives the text that defined it.
  ShellTruth run_text(const std::string& text, int line) {
    if (++depth_ > kDeepestText) {
      fail(Code::kBadValue, file_ + ':' + std::to_string(line), "starts itself without end");
    }
    scope_.count_words(text.size());
    trees_.push_back(parse_shell(text, file_, line));
    const ShellTruth out = run(trees_.back());
    --depth_;
    return out;
  }

  ShellTruth run(const ShellList& list) {
    ShellTruth last;
    for (const ShellStep& step : list) {
      const bool waits = step.join != ShellJoin::kAlways && last.waits;
      const bool skipped = (step.join == ShellJoin::kAnd && !last.holds) ||
                           (step.join == ShellJoin::kOr && last.holds);
      if (!skipped) {
        last = run(*step.command);
        last.waits |= waits;
        if (step.negated) last.holds = !last.holds;
      }
      if (waits) forget(*step.command);
      if (flow_ != Flow::kNext) return last;
    }
    return last;
  }

  ShellTruth run(const ShellCommand& command) {
    scope_.line = command.line;
    scope_.count_command();
    switch (command.kind) {
      case ShellCommand::kSimple: return simple(command);
      case ShellCommand::kTest: return test(command.words, /*split=*/false);
      case ShellCommand::kArithmetic: return arithmetic(command.words[0].text);
      case ShellCommand::kIf: return run_if(command);
      case ShellCommand::kFor: return run_for(command);
      case ShellCommand::kForArithmetic: return run_counted(command);
      case ShellCommand::kWhile: return run_while(command);
      case ShellCommand::kCase: return run_case(command);
      case ShellCommand::kFunction: functions_[command.name] = &command.branches[0].body; return {};
    }
    return {};
  }

  ShellTruth test(const std::vector<ShellToken>& words, bool split) {
    scope_.in_test = true;
    const std::vector<TestWord> tested = expand_.tests(words, split);
    scope_.in_test = false;
    const ShellTruth out = shell_test(tested, scope_.letters_left);
    if (out.waits) {
      for (const TestWord& word : tested) note_open(word.text);
    }
    return out;
  }

  ShellTruth arithmetic(const std::string& text) {
    scope_.in_test = true;
    const std::optional<int64_t> value = expand_.arithmetic(text);
    scope_.in_test = false;
    return value ? ShellTruth{*value != 0, true} : ShellTruth{true, false};
  }

  ShellTruth run_if(const ShellCommand& command) {
    bool waits = false;
    ShellTruth out;
    for (const ShellBranch& branch : command.branches) {
      const ShellTruth truth = branch.condition.empty() ? ShellTruth() : run(branch.condition);
      if (flow_ != Flow::kNext) return truth;
      waits |= truth.waits;
      if (!truth.known && !truth.waits) notes_.condition(command.line, "if");
      if (!truth.holds) continue;
      out = guarded(branch.body, truth.known && !waits);
      break;
    }
    if (waits) forget(command);
    return out;
  }

  void note_open(const std::string& value) {
    if (is_open_text(value)) waiting_.insert(value);
  }

  // What the branches set, as none of their tests is known to hold.
  void forget(const ShellCommand& command) {
    const auto& words = command.words;
    const bool declares = !words.empty() && ShellAssign::declares(words[0].text);
    for (const ShellToken& word : words) {
      const size_t sign = shell_assignment(word.text);
      if (command.kind != ShellCommand::kSimple) break;
      if (sign == std::string::npos && !declares) break;
      if (sign == std::string::npos) continue;
      const std::string name = word.text.substr(0, word.text.find_first_of("+=["));
      if (word.text.find("--", sign) != std::string::npos) open_.insert(name);
      scope_.unset(name);
    }
    if (command.kind == ShellCommand::kFunction) return;
    for (const ShellBranch& branch : command.branches) {
      for (const ShellStep& step : branch.body) forget(*step.command);
    }
  }

  // What is not sure to run does not end the script.
  ShellTruth guarded(const ShellList& body, bool known) {
    unsure_ += !known;
    const ShellTruth out = run(body);
    unsure_ -= !known;
    return out;
  }

  // Whether a loop goes on.
  bool next_round() {
    if (flow_ == Flow::kContinue) flow_ = Flow::kNext;
    if (flow_ == Flow::kBreak) return flow_ = Flow::kNext, false;
    scope_.count_command();
    return flow_ == Flow::kNext;
  }

  ShellTruth run_for(const ShellCommand& command) {
    const Words words = command.listed ? expand_.words(command.words) : scope_.given_arguments();
    for (const ShellWord& word : words) {
      scope_.set(command.name, {word}, /*more=*/false);
      run(command.branches[0].body);
      if (!next_round()) break;
    }
    return {};
  }

  ShellTruth run_counted(const ShellCommand& command) {
    std::array<std::string, 3> parts;
    size_t part = 0;
    for (const char c : command.words[0].text) {
      if (c == ';' && part < 2) {
        ++part;
      } else {
        parts[part] += c;
      }
    }
    arithmetic(parts[0]);
    for (;;) {
      const ShellTruth goes_on = parts[1].empty() ? ShellTruth{} : arithmetic(parts[1]);
      if (!goes_on.known) notes_.condition(command.line, "for");
      if (!goes_on.holds) return {};
      run(command.branches[0].body);
      if (!next_round() || !goes_on.known) return {};
      arithmetic(parts[2]);
    }
  }

  // A loop whose end the script alone does not say runs once.
  ShellTruth run_while(const ShellCommand& command) {
    const ShellBranch& branch = command.branches[0];
    const bool until = command.name == "until";
    for (;;) {
      const ShellTruth truth = run(branch.condition);
      if (flow_ != Flow::kNext || (truth.known && truth.holds == until)) return {};
      if (!truth.known) notes_.condition(command.line, command.name);
      guarded(branch.body, truth.known);
      if (!next_round() || !truth.known) return {};
    }
  }

  ShellTruth run_case(const ShellCommand& command) {
    scope_.in_test = true;
    const std::string word = expand_.text(command.words[0]);
    scope_.in_test = false;
    if (word.find("$(") != std::string::npos) notes_.condition(command.line, "case");
    const bool waits = is_open_text(word);
    note_open(word);
    ShellTruth out;
    for (const ShellBranch& branch : command.branches) {
      const bool fits = std::ranges::any_of(branch.patterns, [&](const ShellToken& pattern) {
        return shell_matches(word, expand_.text(pattern), scope_.letters_left).value_or(false);
      });
      if (!fits) continue;
      out = guarded(branch.body, !waits);
      break;
    }
    if (waits) forget(command);
    return out;
  }

  ShellTruth simple(const ShellCommand& command) {
    size_t first = 0;
    while (first < command.words.size() &&
           shell_assignment(command.words[first].text) != std::string::npos) {
      assign_.assign(command.words[first++]);
    }
    const std::vector<ShellToken> tokens(command.words.begin() + static_cast<int64_t>(first),
                                         command.words.end());
    if (tokens.empty()) return {};
    const std::string& name = tokens[0].text;
    if (name == "[" || name == "test") return test(tokens, /*split=*/true);
    if (ShellAssign::declares(name)) {
      assign_.declare(tokens);
      return {};
    }
    const Words words = expand_.words(tokens);
    if (words.empty()) return {};
    scope_.line = command.line;
    if (const auto function = functions_.find(words[0].text); function != functions_.end()) {
      return call(*function->second, words);
    }
    return builtin(words, command);
  }

  ShellTruth call(const ShellList& body, const Words& words) {
    scope_.enter({words.begin() + 1, words.end()});
    const ShellTruth out = run(body);
    if (flow_ == Flow::kReturn) flow_ = Flow::kNext;
    scope_.leave();
    return out;
  }

  // Ends the loop, the function or the script; where that is not sure, only the loop.
  ShellTruth leave(Flow flow, const Words& words) {
    const bool ends = flow == Flow::kReturn || flow == Flow::kExit;
    if (ends && unsure_ > 0) return {};
    flow_ = flow;
    return {words.size() < 2 || words[1].text == "0", true};
  }

  ShellTruth builtin(const Words& words, const ShellCommand& command) {
    const std::string& name = words[0].text;
    if (name == ":" || name == "true") return {};
    if (name == "false") return {false, true};
    if (name == "exit") return leave(Flow::kExit, words);
    if (name == "return") return leave(Flow::kReturn, words);
    if (name == "break") return leave(Flow::kBreak, words);
    if (name == "continue") return leave(Flow::kContinue, words);
    if (name == "shift") return shift(words);
    if (name == "let") return let(words);
    if (name == "printf" && words.size() > 3 && words[1].text == "-v") return print_into(words);
    if (name == "eval") return run_text(joined(words, 1), command.line);
    if (name == "set" && words.size() > 1 && words[1].text == "--") return set_arguments(words);
    if (name == "unset") {
      for (const ShellWord& word : words) scope_.unset(word.text);
      return {};
    }
    return other(words, command);
  }

  static std::string joined(const Words& words, size_t first) {
    std::string out;
    for (size_t i = first; i < words.size(); ++i) out += (i > first ? " " : "") + words[i].text;
    return out;
  }

  ShellTruth shift(const Words& words) {
    int64_t count = 1;
    if (words.size() > 1 && !from_text(words[1].text, count)) return {true, false};
    const ShellScope::Arguments& all = scope_.arguments();
    if (count < 0 || count > static_cast<int64_t>(all.size())) return {false, true};
    scope_.set_arguments({all.begin() + count, all.end()});
    return {};
  }

  ShellTruth let(const Words& words) {
    ShellTruth out;
    for (size_t i = 1; i < words.size(); ++i) out = arithmetic(words[i].text);
    return out;
  }

  // printf -v NAME FORMAT WORD...
  ShellTruth print_into(const Words& words) {
    const Words values(words.begin() + 4, words.end());
    scope_.set(words[2].text, {{shell_printed(words[3].text, values), scope_.line}},
               /*more=*/false);
    return {};
  }

  ShellTruth set_arguments(const Words& words) {
    ShellScope::Arguments all;
    for (size_t i = 2; i < words.size(); ++i) all.emplace_back(words[i].text);
    scope_.set_arguments(std::move(all));
    return {};
  }

  // A command of the machine. A shell that it starts is read too: bash -c, --wrap, and a here
  // document.
  ShellTruth other(const Words& words, const ShellCommand& command) {
    constexpr ShellTruth kSucceeds = {true, false};
    if (words[0].text == "cat") {
      for (const ShellHere& here : command.here) {
        if (here.text.find_first_not_of(" \t\n") == here.text.find('{')) {
          json_.push_back({expand_.here(here), here.line});
        }
      }
    }
    if (is_idle_command(words[0].text)) return kSucceeds;
    if (reads_here_documents(words[0].text)) {
      for (const ShellHere& here : command.here) inner(expand_.here(here), here.line);
    }
    if (const auto text = text_for_shell(words); text) {
      inner(*text, command.line);
    } else {
      started_.add(words);
    }
    return kSucceeds;
  }

  // What another shell reads; where it ends, this one does not.
  void inner(const std::string& text, int line) {
    ++unsure_;
    run_text(text, line);
    --unsure_;
  }

  const std::string& text_;
  const std::string& file_;
  ShellScope scope_;
  ShellExpand expand_;
  ShellAssign assign_;
  std::list<ShellList> trees_;
  std::map<std::string, const ShellList*> functions_;
  ShellStarted started_;
  ShellNotes notes_;
  std::set<std::string> open_;     // forgotten, and holds flags
  std::set<std::string> waiting_;  // values that tests hang on and nobody gives
  std::vector<ShellWord> json_;
  Flow flow_ = Flow::kNext;
  int unsure_ = 0;  // conditions around that are not known
  size_t depth_ = 0;
};

}  // namespace

ShellArguments shell_arguments(const std::string& text,
                               const std::map<std::string, std::string>& given,
                               const std::string& file) {
  return Script(text, given, file).read();
}

}  // namespace troupe
