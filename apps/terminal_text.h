// A stream without control characters where a terminal shows it: names and texts of other people's
// files cannot move the cursor, set the window's title or write what was never said. A file or a
// pipe gets every byte as it is.
#pragma once

#include <ostream>
#include <streambuf>
#include <string>

namespace troupe {

// Between `out` and what it wrote to, until the end of its life; nothing where `fd`, which is
// behind `out`, is no terminal.
class TerminalText : public std::streambuf {
 public:
  TerminalText(std::ostream& out, int fd);
  ~TerminalText() override;
  TerminalText(const TerminalText&) = delete;
  TerminalText& operator=(const TerminalText&) = delete;

 protected:
  int_type overflow(int_type c) override;
  std::streamsize xsputn(const char* text, std::streamsize size) override;
  int sync() override;

 private:
  std::ostream* const out_;  // null: no terminal
  std::streambuf* const inner_;
  std::string begun_;  // the bytes of a character whose last ones have not come
};

}  // namespace troupe
