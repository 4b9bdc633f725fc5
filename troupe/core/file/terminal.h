// How wide a terminal is.
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

namespace troupe {

// What a line of the terminal `fd` takes; 0: it is none. The last column stays free: a terminal
// that is full may begin a new line.
inline int terminal_columns(int fd) {
  if (::isatty(fd) == 0) return 0;
  winsize size = {};
  const bool known = ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  constexpr int kUsual = 80;
  return (known ? size.ws_col : kUsual) - 1;
}

}  // namespace troupe
