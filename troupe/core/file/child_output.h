// What another program writes to its standard output, read as it comes. Its standard input is
// empty; of its standard error the last 4 KiB are kept. It ends with this object.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

namespace troupe {

struct ChildEnd {
  bool ok = false;           // exit code 0
  bool never_began = false;  // no such program
  std::string said = {};     // the last line of its standard error, or the signal that ended it
};

class ChildOutput {
 public:
  // `words`: the program, looked for in PATH, and its arguments. No shell reads them.
  explicit ChildOutput(const std::vector<std::string>& words);
  ChildOutput(const ChildOutput&) = delete;
  ChildOutput& operator=(const ChildOutput&) = delete;
  ~ChildOutput();

  // Fills `out`; fewer bytes only where the output has ended.
  size_t read(std::span<char> out);
  std::string rest();  // all that is not read yet
  // Waits for its end. The same answer each time.
  ChildEnd wait();

 private:
  void drain_errors();

  pid_t pid_ = -1;
  int out_ = -1, errors_ = -1;
  int spawn_error_ = 0;
  bool errors_over_ = false;  // nothing comes there any more
  bool ended_ = false;
  int status_ = 0;
  std::string said_;
};

}  // namespace troupe
