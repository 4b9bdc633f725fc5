#include "apps/standard_output.h"

#include <cerrno>
#include <cstdio>
#include <iostream>
#include <system_error>

#include "troupe/core/check.h"

namespace troupe {

StandardOutput::StandardOutput() : inner_(std::cout.rdbuf(this)) {}

StandardOutput::~StandardOutput() {
  std::cout.rdbuf(inner_);
}

int StandardOutput::finish(int code) {
  sync();
  // What C's printf or a descriptor's own writer met before has left no reason.
  if (std::ferror(stdout) != 0) note(EIO);
  if (error_ == 0 || error_ == EPIPE) return code;
  const bool full = error_ == ENOSPC || error_ == EDQUOT;
  const Code fault = full ? Code::kNoSpace : Code::kFileFailed;
  std::cerr << detail::fault_text("standard output", fault, "cannot write:",
                                  std::generic_category().message(error_) +
                                      "; what was printed is not whole. Run the command again")
            << (full ? " where there is room\n" : " with an output that can be written\n");
  return code != 0 ? code : static_cast<int>(exit_class(fault));
}

StandardOutput::int_type StandardOutput::overflow(int_type c) {
  if (traits_type::eq_int_type(c, traits_type::eof())) return traits_type::not_eof(c);
  const char one = traits_type::to_char_type(c);
  return xsputn(&one, 1) == 1 ? c : traits_type::eof();
}

std::streamsize StandardOutput::xsputn(const char* text, std::streamsize size) {
  errno = 0;
  const std::streamsize taken = inner_->sputn(text, size);
  if (taken != size) note(errno);
  return taken;
}

int StandardOutput::sync() {
  errno = 0;
  const int status = inner_->pubsync();
  if (status != 0) note(errno);
  return status;
}

void StandardOutput::note(int error) {
  if (error_ == 0) error_ = error != 0 ? error : EIO;
}

}  // namespace troupe
