#include "apps/terminal_text.h"

#include <unistd.h>

#include "troupe/core/text/plain_text.h"

namespace troupe {

TerminalText::TerminalText(std::ostream& out, int fd)
    : out_(::isatty(fd) != 0 ? &out : nullptr), inner_(out.rdbuf()) {
  if (out_ != nullptr) out_->rdbuf(this);
}

TerminalText::~TerminalText() {
  if (out_ == nullptr) return;
  const std::string rest = plain_text(begun_);
  inner_->sputn(rest.data(), std::ssize(rest));
  inner_->pubsync();
  out_->rdbuf(inner_);
}

std::streamsize TerminalText::xsputn(const char* text, std::streamsize size) {
  begun_.append(text, static_cast<size_t>(size));
  const size_t whole = begun_.size() - incomplete_utf8_tail(begun_);
  const std::string shown = plain_text(std::string_view(begun_).substr(0, whole));
  begun_.erase(0, whole);
  return inner_->sputn(shown.data(), std::ssize(shown)) == std::ssize(shown) ? size : 0;
}

TerminalText::int_type TerminalText::overflow(int_type c) {
  if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
  const char one = traits_type::to_char_type(c);
  return xsputn(&one, 1) == 1 ? c : traits_type::eof();
}

int TerminalText::sync() {
  return inner_->pubsync();
}

}  // namespace troupe
