// How many files this process may have open (ulimit -n): connections to other ranks count too. A
// login gives a soft limit of 1,024 as a rule, which each process may raise up to the hard one.
#pragma once

#include <cstdint>

namespace troupe {

// A limit above it is left: some programs that this one starts close each number below.
inline constexpr int64_t kMostOpenFiles = int64_t{1} << 20;

struct OpenFiles {
  int64_t given = -1;    // the soft limit before, -1: none
  int64_t allowed = -1;  // the limit from then on
};

// Raises the soft limit to the hard one, for this process and those that it starts.
OpenFiles raise_open_files();

// Of the first call in this process, which raises it: at the start of the program.
const OpenFiles& open_files();

}  // namespace troupe
