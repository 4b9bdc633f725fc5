#include "troupe/train/recipe/foreign/shell_syntax.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/train/recipe/foreign/shell_letters.h"
#include "troupe/train/recipe/foreign/shell_lexer.h"
#include "troupe/train/recipe/foreign/shell_pieces.h"

namespace troupe {
namespace {

constexpr int kMostParsed = 100'000;  // each takes some hundred bytes

class ShellParser {
 public:
  ShellParser(const std::string& text, const std::string& file, int line)
      : text_(text, line), file_(file) {}

  ShellList script() {
    // A list of arguments is no command: brackets in it are letters.
    text_.skip();
    text_.set_bare(text_.at("--"));
    ShellList out;
    while (!text_.ended()) {
      ShellList more = list({});
      std::move(more.begin(), more.end(), std::back_inserter(out));
      if (!text_.ended()) text_.step();  // a bracket or a word that closes nothing
    }
    return out;
  }

  std::vector<ShellToken> array() {
    std::vector<ShellToken> out;
    text_.set_bare(true);
    for (text_.skip(); !text_.ended(); text_.skip()) {
      const size_t begin = text_.position();
      out.push_back(text_.word());
      if (text_.position() == begin) out.back().text += text_.peek(), text_.step();
    }
    return out;
  }

 private:
  using Ends = std::vector<std::string_view>;

  ShellList list(const Ends& ends) {
    ShellList out;
    ShellJoin join = ShellJoin::kAlways;
    for (;;) {
      text_.skip();
      while (text_.peek() == ';' || text_.peek() == '&' || text_.peek() == '|') {
        if (text_.at(";;")) return out;
        text_.step();
        text_.skip();
      }
      if (text_.ended() || text_.peek() == ')') return out;
      const std::string here = text_.reserved();
      if (std::find(ends.begin(), ends.end(), here) != ends.end() && !here.empty()) return out;
      if (is_stray(here)) {
        text_.step(here.size());
        continue;
      }
      ShellStep one{join, false, nullptr};
      for (; text_.take("!"); text_.blanks()) one.negated = !one.negated;
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
    text_.blanks();
    const bool both = text_.at("&&"), either = text_.at("||");
    if (both || either) text_.step(2);
    return both ? ShellJoin::kAnd : either ? ShellJoin::kOr : ShellJoin::kAlways;
  }

  std::unique_ptr<ShellCommand> command() {
    if (++commands_ > kMostParsed) {
      fail(Code::kBadValue, file_ + ':' + std::to_string(text_.line()), "has more than",
           std::to_string(kMostParsed), "commands; give the words of the training command alone");
    }
    if (++depth_ > kDeepestShell) {
      fail(Code::kBadValue, file_ + ':' + std::to_string(text_.line()), "has commands over",
           std::to_string(kDeepestShell), "deep in each other");
    }
    auto out = std::make_unique<ShellCommand>();
    out->line = text_.line();
    const std::string first = text_.reserved();
    if (first == "if") {
      parse_if(*out);
    } else if (first == "while" || first == "until") {
      parse_while(*out, first);
    } else if (first == "for" || first == "select") {
      parse_for(*out, first);
    } else if (first == "case") {
      parse_case(*out);
    } else if (first == "function") {
      text_.take(first), text_.blanks();
      parse_function(*out, text_.word().text);
    } else if (first == "[[") {
      parse_test(*out);
    } else if (text_.at("((")) {
      out->kind = ShellCommand::kArithmetic;
      out->words = {text_.arithmetic()};
    } else if (first == "{" || text_.peek() == '(') {
      text_.step();
      group(*out, first == "{" ? "}" : ")");
    } else {
      simple(*out);
    }
    for (text_.blanks(); out->kind != ShellCommand::kSimple && text_.redirection(*out);
         text_.blanks())
      continue;
    --depth_;
    return out;
  }

  void group(ShellCommand& out, std::string_view end) {
    out.kind = ShellCommand::kIf;
    out.branches.emplace_back();
    out.branches.back().body = list(end == "}" ? Ends{"}"} : Ends{});
    if (text_.peek() == end[0]) text_.step();
  }

  void simple(ShellCommand& out) {
    for (text_.blanks();; text_.blanks()) {
      if (text_.ended() || text_.redirection(out)) {
        if (text_.ended()) return;
        continue;
      }
      const char c = text_.peek();
      if (is_shell_separator(c) && !(text_.is_bare() && (c == '(' || c == ')'))) break;
      const size_t begin = text_.position();
      out.words.push_back(text_.word());
      if (text_.position() == begin) text_.step();
    }
    if (text_.peek() != '(') return;
    if (out.words.size() != 1) return text_.step();  // a bracket that opens nothing
    const std::string name = std::exchange(out.words, {})[0].text;
    parse_function(out, name);
  }

  void parse_function(ShellCommand& out, const std::string& name) {
    out.kind = ShellCommand::kFunction;
    out.name = name;
    text_.blanks();
    if (text_.peek() == '(') text_.step(), text_.blanks();
    if (text_.peek() == ')') text_.step();
    text_.skip();
    out.branches.emplace_back();
    if (text_.ended()) return;
    out.branches.back().body.push_back({ShellJoin::kAlways, false, command()});
  }

  void parse_if(ShellCommand& out) {
    out.kind = ShellCommand::kIf;
    text_.take("if");
    for (;;) {
      ShellBranch branch;
      branch.condition = list({"then", "fi", "else", "elif"});
      text_.take("then");
      branch.body = list({"elif", "else", "fi"});
      out.branches.push_back(std::move(branch));
      if (text_.take("elif")) continue;
      if (text_.take("else")) {
        out.branches.emplace_back();
        out.branches.back().body = list({"fi"});
      }
      text_.take("fi");
      return;
    }
  }

  void parse_while(ShellCommand& out, const std::string& word) {
    out.kind = ShellCommand::kWhile;
    out.name = word;
    text_.take(word);
    ShellBranch branch;
    branch.condition = list({"do", "done"});
    text_.take("do");
    branch.body = list({"done"});
    text_.take("done");
    out.branches.push_back(std::move(branch));
  }

  void parse_for(ShellCommand& out, const std::string& word) {
    out.kind = ShellCommand::kFor;
    text_.take(word);
    text_.blanks();
    if (text_.at("((")) {
      out.kind = ShellCommand::kForArithmetic;
      out.words = {text_.arithmetic()};
    } else {
      out.name = text_.word().text;
      text_.skip();
      out.listed = text_.take("in");
      for (text_.blanks(); out.listed && !text_.ended() && !is_shell_separator(text_.peek());
           text_.blanks()) {
        const size_t begin = text_.position();
        out.words.push_back(text_.word());
        if (text_.position() == begin) text_.step();
      }
    }
    text_.skip();
    while (text_.peek() == ';') text_.step(), text_.skip();
    const bool braces = text_.take("{");
    if (!braces) text_.take("do");
    out.branches.emplace_back();
    out.branches.back().body = list({braces ? "}" : "done"});
    text_.take(braces ? "}" : "done");
  }

  void parse_case(ShellCommand& out) {
    out.kind = ShellCommand::kCase;
    text_.take("case");
    text_.blanks();
    out.words = {text_.word()};
    text_.skip();
    text_.take("in");
    for (text_.skip(); !text_.ended() && !text_.take("esac"); text_.skip()) {
      const size_t begin = text_.position();
      ShellBranch branch;
      if (text_.peek() == '(') text_.step();
      for (text_.blanks(); !text_.ended() && text_.peek() != ')' && text_.peek() != '\n';
           text_.blanks()) {
        const size_t pattern = text_.position();
        if (text_.peek() != '|') branch.patterns.push_back(text_.word());
        if (text_.position() == pattern) text_.step();
      }
      if (text_.peek() == ')') text_.step();
      branch.body = list({"esac"});
      while (text_.peek() == ';' || text_.peek() == '&') text_.step();
      out.branches.push_back(std::move(branch));
      if (text_.position() == begin) text_.step();
    }
  }

  // [[ ... ]]: &&, ||, brackets and signs are words of it.
  void parse_test(ShellCommand& out) {
    out.kind = ShellCommand::kTest;
    while (!text_.ended()) {
      text_.skip();
      const char c = text_.peek();
      if (c == ';') return;
      if (text_.at("&&") || text_.at("||")) {
        out.words.push_back({std::string(2, text_.peek()), text_.line()});
        text_.step(2);
      } else if (is_shell_separator(c) || ((c == '<' || c == '>') && text_.peek(1) != '(')) {
        out.words.push_back({std::string(1, c), text_.line()});
        text_.step();
      } else {
        out.words.push_back(text_.word());
        if (out.words.back().text == "]]") return;
        // A pattern may hold brackets and bars.
        if (out.words.back().text == "=~") text_.blanks(), out.words.push_back(text_.pattern());
      }
    }
  }

  ShellLexer text_;
  const std::string& file_;
  int depth_ = 0, commands_ = 0;
};

}  // namespace

ShellList parse_shell(const std::string& text, const std::string& file, int line) {
  return ShellParser(text, file, line).script();
}

std::vector<ShellToken> shell_array_words(const std::string& text, const std::string& file,
                                          int line) {
  return ShellParser(text, file, line).array();
}

}  // namespace troupe
