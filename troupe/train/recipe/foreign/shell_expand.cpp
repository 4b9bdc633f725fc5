#include "troupe/train/recipe/foreign/shell_expand.h"

#include <algorithm>
#include <string_view>

#include "troupe/core/text/text.h"
#include "troupe/train/recipe/foreign/shell_arithmetic.h"
#include "troupe/train/recipe/foreign/shell_letters.h"
#include "troupe/train/recipe/foreign/shell_pattern.h"
#include "troupe/train/recipe/foreign/shell_pieces.h"

namespace troupe {
namespace {

constexpr int kDeepestValue = 32;  // ${A:-${B:-${C}}}

bool is_blank(char c) {
  return c == ' ' || c == '\n' || c == '\t';
}

// "$(command)", and not "$((1 + 1))".
bool is_output(std::string_view piece) {
  return piece.starts_with("$(") && !piece.starts_with("$((");
}

std::string plain_output(const std::string& piece) {
  return piece.starts_with('`') ? "$(" + piece.substr(1, piece.size() - 2) + ')' : piece;
}

// One behind "$NAME", "$1", "${..}", "$((..))" or "$(..)" at `at`; at + 1: a lone sign.
size_t dollar_end(const std::string& text, size_t at) {
  const char next = at + 1 < text.size() ? text[at + 1] : '\0';
  if (next == '(' || next == '{') return shell_piece_end(text, at);
  if (is_shell_digit(next) ||
      (next != '\0' && std::string_view("@*#?$!-").find(next) != std::string::npos))
    return at + 2;
  size_t end = at + 1;
  while (end < text.size() && is_shell_name(text[end])) ++end;
  return end;
}

std::string joined(const std::vector<ShellWord>& words) {
  std::string out;
  for (size_t i = 0; i < words.size(); ++i) out += (i > 0 ? " " : "") + words[i].text;
  return out;
}

size_t letters_of(const std::vector<ShellWord>& words) {
  size_t out = words.size();
  for (const ShellWord& word : words) out += word.text.size();
  return out;
}

// $'a\tb'
std::string ansi(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char next = text[i] == '\\' && i + 1 < text.size() ? text[++i] : '\0';
    out += next == 'n' ? '\n' : next == 't' ? '\t' : next != '\0' ? next : text[i];
  }
  return out;
}

}  // namespace

ShellExpand::Words ShellExpand::words(const ShellToken& token) {
  Words out;
  for (Field& field : fields(token, /*split=*/true)) {
    if (!field.word.text.empty() || field.quoted) out.push_back(std::move(field.word));
  }
  return out;
}

ShellExpand::Words ShellExpand::words(const std::vector<ShellToken>& tokens) {
  Words out;
  for (const ShellToken& token : tokens) {
    Words more = words(token);
    std::move(more.begin(), more.end(), std::back_inserter(out));
  }
  return out;
}

std::string ShellExpand::text(const ShellToken& token) {
  std::string out;
  for (const Field& field : fields(token, /*split=*/false)) {
    out += (out.empty() ? "" : " ") + field.word.text;
  }
  return out;
}

std::vector<TestWord> ShellExpand::tests(const std::vector<ShellToken>& tokens, bool split) {
  std::vector<TestWord> out;
  for (const ShellToken& token : tokens) {
    for (const Field& field : fields(token, split)) out.push_back({field.word.text, field.quoted});
  }
  return out;
}

std::string ShellExpand::here(const ShellHere& here) {
  if (here.literal) return here.text;
  std::vector<Field> out(1);
  quoted(out, here.text, /*here=*/true);
  return out.back().word.text;
}

std::vector<ShellExpand::Field> ShellExpand::fields(const ShellToken& token, bool split) {
  scope_.line = token.line;
  scope_.count_words(token.text.size() + sizeof(ShellWord));
  std::vector<Field> out(1, Field{{"", token.line}, false});
  const std::string& text = token.text;
  for (size_t at = 0; at < text.size();) {
    size_t end = shell_piece_end(text, at);
    const char c = text[at];
    const std::string piece = text.substr(at, end - at);
    const size_t closed = piece.size() > 1 && piece.back() == c ? piece.size() - 1 : piece.size();
    if (c == '\\') {
      if (piece != "\\\n") out.back().word.text += piece.substr(1);
      out.back().quoted |= piece != "\\\n";
    } else if (c == '\'') {
      out.back().word.text += piece.substr(1, closed - 1);
      out.back().quoted = true;
    } else if (c == '"') {
      const size_t before = out.size();
      quoted(out, piece.substr(1, closed - 1), /*here=*/false);
      // "$@" of nothing is no word.
      const bool nothing = out.size() == before && out.back().word.text.empty() &&
                           (piece == "\"$@\"" || piece.ends_with("[@]}\""));
      out.back().quoted |= !nothing;
    } else if (c == '$' && end > at + 1 && text[at + 1] == '\'') {
      out.back().word.text += ansi(std::string_view(piece).substr(2, piece.size() - 3));
      out.back().quoted = true;
    } else if (c == '`') {
      out.back().word.text += plain_output(piece);
    } else if (c == '$') {
      end = dollar_end(text, at);
      append(out, dollar(text.substr(at, end - at)), split, split);
    } else {
      out.back().word.text += piece;
    }
    at = end;
  }
  return out;
}

// What stands between double quotes.
void ShellExpand::quoted(std::vector<Field>& out, const std::string& text, bool here) {
  for (size_t at = 0; at < text.size();) {
    const char c = text[at], next = at + 1 < text.size() ? text[at + 1] : '\0';
    if (c == '\\' && next == '\n') {
      at += 2;
    } else if (c == '\\' &&
               (next == '$' || next == '`' || next == '\\' || (next == '"' && !here))) {
      out.back().word.text += next;
      at += 2;
    } else if (c == '$' && next != '\'' && next != '"') {
      const size_t end = dollar_end(text, at);
      Value value = dollar(text.substr(at, end - at));
      append(out, value, value.list && !here, false);
      at = end;
    } else if (c == '`') {
      const size_t end = shell_piece_end(text, at);
      out.back().word.text += plain_output(text.substr(at, end - at));
      at = end;
    } else {
      out.back().word.text += c;
      ++at;
    }
  }
}

// Appends a value: its `parts` as words of their own, and, outside quotes, split at `blanks`. A lone
// backslash there is the end of a line that somebody wrote into one.
void ShellExpand::append(std::vector<Field>& out, const Value& value, bool parts, bool blanks) {
  const size_t before = out.size();
  const auto begin = [&](int line) { out.push_back({{"", line}, out.back().quoted && !blanks}); };
  for (size_t i = 0; i < value.words.size(); ++i) {
    const auto& [text, line] = value.words[i];
    scope_.count_value(text.size());
    if (i > 0 && parts) begin(line);
    if (i > 0 && !parts) out.back().word.text += glue_;
    if (out.back().word.text.empty()) out.back().word.line = line;
    for (size_t at = 0; at < text.size();) {
      const bool output = text.compare(at, 2, "$(") == 0;
      const size_t end = blanks && output ? shell_piece_end(text, at) : at + 1;
      const bool lone = text[at] == '\\' && (at == 0 || is_blank(text[at - 1])) &&
                        (at + 1 == text.size() || is_blank(text[at + 1]));
      if (blanks && (is_blank(text[at]) || lone)) {
        if (!out.back().word.text.empty()) begin(line);
      } else {
        out.back().word.text.append(text, at, end - at);
      }
      at = end;
    }
  }
  scope_.count_value((out.size() - before) * sizeof(ShellWord));
}

// What "$..." is replaced by.
ShellExpand::Value ShellExpand::dollar(const std::string& piece) {
  if (piece.size() < 2 || depth_ >= kDeepestValue) return one(piece);
  if (piece.starts_with("$((") && piece.ends_with("))")) {
    const std::optional<int64_t> value = arithmetic(piece.substr(3, piece.size() - 5));
    return value ? one(to_text(*value)) : one(piece);
  }
  if (is_output(piece)) {
    const std::optional<std::string> said = echoed(piece.substr(2, piece.size() - 3));
    return one(said.value_or(piece));
  }
  ++depth_;
  const bool braces = piece[1] == '{';
  Value out = parameter(
      braces ? piece.substr(2, piece.size() - 2 - piece.ends_with('}')) : piece.substr(1), piece);
  --depth_;
  return out;
}

// What "echo ..." and "IFS=x; echo ..." print of values that the script has; nothing of all other
// commands.
std::optional<std::string> ShellExpand::echoed(const std::string& command) {
  const size_t first = command.find_first_not_of(" \t\n");
  if (first == std::string::npos || command.find_first_of("|><`") != std::string::npos) return {};
  const bool glued = command.compare(first, 4, "IFS=") == 0;
  if (!glued && command.compare(first, 5, "echo ") != 0) return {};
  scope_.count_words(command.size());
  const ShellList list = parse_shell(command, "$(" + command + ')', scope_.line);
  if (list.size() != (glued ? 2U : 1U)) return {};
  const ShellCommand& last = *list.back().command;
  const bool simple = last.kind == ShellCommand::kSimple && !last.words.empty();
  if (!simple || last.words[0].text != "echo") return {};
  ++depth_;
  const char before = glue_;
  if (glued) {
    const std::string letters =
        text({command.substr(first + 4, command.find(';') - first - 4), scope_.line});
    glue_ = letters.empty() ? ' ' : letters[0];
  }
  const Words said = words(std::vector<ShellToken>(last.words.begin() + 1, last.words.end()));
  glue_ = before;
  --depth_;
  const std::string out = joined(said);
  return out.find('$') == std::string::npos ? std::optional(out) : std::nullopt;
}

ShellExpand::Value ShellExpand::parameter(const std::string& inside, const std::string& piece) {
  if (inside == "@" || inside == "*") return {scope_.given_arguments(), inside == "@"};
  if (inside == "#") return one(to_text(scope_.num_given()));
  if (inside == "?") return one("0");
  if (inside.size() > 1 && inside[0] == '#') return length(inside.substr(1));
  const bool named = inside.size() > 1 && inside[0] == '!';  // ${!NAME}: of the name that it holds
  size_t end = named;
  if (inside[0] == '@' || inside[0] == '*') end = 1;
  while (end < inside.size() && is_shell_name(inside[end])) ++end;
  std::string name = inside.substr(named, end - named), index;
  if (name.empty()) return one(piece);
  if (end < inside.size() && inside[end] == '[') {
    const size_t close = std::min(inside.find(']', end), inside.size());
    index = text({inside.substr(end + 1, close - end - 1), scope_.line});
    end = std::min(close + 1, inside.size());
  }
  if (named && index.empty()) {
    const Words* const other = scope_.find(name);
    if (other == nullptr || other->empty()) return unknown(name, piece);
    name = (*other)[0].text;
  }
  bool set = false;
  const Value value = of_name(name, index, set);
  const std::string rest = inside.substr(end);
  if (rest.empty()) return set ? value : unknown(name, piece);
  if (std::optional<Value> other = otherwise(value, set, name, rest)) return std::move(*other);
  if (!set) return unknown(name, piece);
  const std::optional<std::string> changed =
      shell_operation(joined(value.words), text({rest, scope_.line}), scope_.letters_left);
  return one(changed.value_or(piece));
}

ShellExpand::Value ShellExpand::of_name(const std::string& name, const std::string& index,
                                        bool& set) {
  if (name == "@" || name == "*") {
    set = true;
    return {scope_.given_arguments(), name == "@"};
  }
  int64_t number = 0;
  if (is_shell_digit(name[0]) && from_text(name, number)) {
    const auto at = static_cast<size_t>(number);
    const ShellScope::Arguments& all = scope_.arguments();
    set = at >= 1 && at <= all.size() && all[at - 1].has_value();
    return set ? one(*all[at - 1]) : Value{};
  }
  const Words* const words = scope_.find(name);
  if (words != nullptr && (index.empty() || index == "@" || index == "*")) {
    scope_.count_work(letters_of(*words));
  }
  if (index == "@" || index == "*") {
    set = words != nullptr;
    return set ? Value{*words, index == "@"} : Value{};
  }
  if (!index.empty()) {
    const Words* const keyed = scope_.find(name + '[' + index + ']');
    const int64_t at = scope_.is_keyed(name) ? -1 : arithmetic(index).value_or(-1);
    const int64_t size = words == nullptr ? 0 : std::ssize(*words);
    set = keyed != nullptr || (0 <= at && at < size);
    if (!set) return {};
    return {{keyed != nullptr ? (*keyed)[0] : (*words)[static_cast<size_t>(at)]}};
  }
  set = words != nullptr;
  // An array without an index is all of it here, as lists of flags are meant.
  return set ? Value{*words} : Value{};
}

// ${NAME:-word} and its kin; nothing where `rest` is another operation.
std::optional<ShellExpand::Value> ShellExpand::otherwise(const Value& value, bool set,
                                                         const std::string& name,
                                                         const std::string& rest) {
  const bool colon = rest.size() > 1 && rest[0] == ':';
  const char kind = rest[colon];
  if (std::string_view("-=+?").find(kind) == std::string_view::npos) return std::nullopt;
  const bool given = set && !(colon && joined(value.words).empty());
  const ShellToken word{rest.substr(colon + 1), scope_.line};
  if (kind == '+') return given ? one(text(word)) : Value{};
  if (given) return value;
  if (kind == '?') return unknown(name, "${" + name + '}');
  Value out = one(text(word));
  if (kind == '=') scope_.set(name, out.words, /*more=*/false);
  return out;
}

// ${#NAME}, ${#NAME[@]}
ShellExpand::Value ShellExpand::length(const std::string& name) {
  if (name == "@" || name == "*") return parameter("#", "$#");
  const size_t bracket = name.find('[');
  const Words* const words = scope_.find(name.substr(0, bracket));
  if (words == nullptr) return unknown(name.substr(0, bracket), "${#" + name + '}');
  if (bracket == std::string::npos) scope_.count_work(letters_of(*words));
  const size_t size = bracket == std::string::npos ? joined(*words).size() : words->size();
  return one(to_text(static_cast<int64_t>(size)));
}

ShellExpand::Value ShellExpand::unknown(const std::string& name, const std::string& piece) {
  if (!scope_.in_test) return one(piece);
  scope_.unset_names.insert(name);
  return one("");
}

std::optional<int64_t> ShellExpand::arithmetic(const std::string& text) {
  if (++depth_ > kDeepestValue) return --depth_, std::nullopt;
  std::vector<Field> replaced(1);
  quoted(replaced, text, /*here=*/true);
  --depth_;
  const ShellNames names{[&](const std::string& name) -> std::optional<std::string> {
                           const Words* const words = scope_.find(name);
                           if (words != nullptr) {
                             scope_.count_work(letters_of(*words));
                             return joined(*words);
                           }
                           if (scope_.in_test) return scope_.unset_names.insert(name), "0";
                           return std::nullopt;
                         },
                         [&](const std::string& name, int64_t value) {
                           scope_.set(name, {{to_text(value), scope_.line}}, /*more=*/false);
                         }};
  return shell_arithmetic(replaced.back().word.text, names);
}

}  // namespace troupe
