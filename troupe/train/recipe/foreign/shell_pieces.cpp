#include "troupe/train/recipe/foreign/shell_pieces.h"

#include <algorithm>

#include "troupe/train/recipe/foreign/shell_letters.h"

namespace troupe {
namespace {

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
    if (text[at] == '#' && open == '(' && (is_shell_blank(before) || before == '\n')) {
      at = std::min(text.find('\n', at), text.size());  // a comment may hold a lone quote
    } else if (text[at] == open && depth < kDeepestShell) {
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
  if (depth > kDeepestShell) return at + 1;
  if (c == '\'') return std::min(text.find('\'', at + 1), text.size() - 1) + 1;
  if (c == '"') return quoted_end(text, at, depth);
  if (c == '`') return closed_by(text, at + 1, '`');
  if (c == '$' && next == '\'') return closed_by(text, at + 2, '\'');
  if (c == '$' && (next == '(' || next == '{')) return bracket_end(text, at + 1, depth);
  return at + 1;
}

}  // namespace

size_t shell_piece_end(const std::string& text, size_t at) {
  return piece_end(text, at, 0);
}

size_t shell_bracket_end(const std::string& text, size_t at) {
  return bracket_end(text, at, 0);
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
