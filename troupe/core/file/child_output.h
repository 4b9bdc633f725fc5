// What another program writes to its standard output, read as it comes. Its standard input is
// empty, or what send() gives it; of its standard error the last 4 KiB are kept. It ends with this
// object.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct ChildEnd {
  bool ok = false;           // exit code 0
  bool never_began = false;  // no such program
  std::string said = {};     // the last line of its standard error, or the signal that ended it
};

enum class ChildInput { kEmpty, kSent };

class ChildOutput {
 public:
  // `words`: the program, looked for in PATH, and its arguments. No shell reads them.
  explicit ChildOutput(const std::vector<std::string>& words,
                       ChildInput input = ChildInput::kEmpty);
  ChildOutput(const ChildOutput&) = delete;
  ChildOutput& operator=(const ChildOutput&) = delete;
  ~ChildOutput();

  // Gives it `text` to read, of ChildInput::kSent; what it writes meanwhile is kept for read().
  // False where it reads no more: wait() says why.
  bool send(std::string_view text);
  // Fills `out`; fewer bytes only where the output has ended.
  size_t read(std::span<char> out);
  // The next line of the output without its line feed; nothing where the output ends before one.
  std::optional<std::string> line();
  std::string rest();  // all that is not read yet
  // Waits for its end. The same answer each time.
  ChildEnd wait();

 private:
  void drain_errors();
  void read_some();
  void exchange(std::string_view* unsent);
  std::string take(size_t bytes);
  size_t kept() const { return kept_.size() - taken_; }

  pid_t pid_ = -1;
  int in_ = -1, out_ = -1, errors_ = -1;
  int spawn_error_ = 0;
  bool errors_over_ = false;  // nothing comes there any more
  bool ended_ = false;
  int status_ = 0;
  std::string said_;
  std::string kept_;  // output that nobody has asked for yet
  size_t taken_ = 0;  // of it, the bytes that somebody has
};

}  // namespace troupe
