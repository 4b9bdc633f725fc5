// Whether all that was printed has been taken: a full disk behind `troupe ... > file` is found when
// the last bytes are written, and a stream forgets why.
#pragma once

#include <streambuf>

namespace troupe {

// Between std::cout and what it wrote to, until the end of its life: keeps the reason of the first
// write that failed.
class StandardOutput : public std::streambuf {
 public:
  StandardOutput();
  ~StandardOutput() override;
  StandardOutput(const StandardOutput&) = delete;
  StandardOutput& operator=(const StandardOutput&) = delete;

  // Writes what is left, also that of C's stdout, and says on stderr what was lost and why. Returns
  // the exit code: `code`, or class 7 for a 0 of a command whose output is not whole. Where nobody
  // reads on (`| head -n 1`) nothing is lost.
  int finish(int code);

 protected:
  int_type overflow(int_type c) override;
  std::streamsize xsputn(const char* text, std::streamsize size) override;
  int sync() override;

 private:
  void note(int error);

  std::streambuf* const inner_;
  int error_ = 0;  // an errno
};

}  // namespace troupe
