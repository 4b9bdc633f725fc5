// The limits of this process (ulimit) by which the system refuses it something, for a message.
#pragma once

#include <sys/resource.h>

#include <cerrno>
#include <string>

namespace troupe {

// "; limits of this process: ulimit -v 700000 (KiB of addresses), ulimit -u 20 (...)": those that
// `error` may come from, as errno has it, and that are set. Empty: none is.
inline std::string limits_behind(int error) {
  struct Limit {
    bool asked;
    __rlimit_resource resource;
    rlim_t unit;
    const char *option, *what;
  };
  const bool threads = error == EAGAIN, memory = threads || error == ENOMEM;
  const Limit all[] = {
      {memory, RLIMIT_AS, 1024, "-v", "KiB of addresses"},
      {memory, RLIMIT_DATA, 1024, "-d", "KiB of data"},
      {threads, RLIMIT_NPROC, 1, "-u", "processes and threads of this user"},
      {error == EMFILE, RLIMIT_NOFILE, 1, "-n", "open files"},
  };
  std::string out;
  for (const Limit& limit : all) {
    struct rlimit value = {};
    if (!limit.asked || ::getrlimit(limit.resource, &value) != 0) continue;
    if (value.rlim_cur == RLIM_INFINITY) continue;
    out += (out.empty() ? "; limits of this process: ulimit " : ", ulimit ") +
           std::string(limit.option) + ' ' + std::to_string(value.rlim_cur / limit.unit) + " (" +
           limit.what + ')';
  }
  return out;
}

}  // namespace troupe
