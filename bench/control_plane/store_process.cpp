#include "bench/control_plane/store_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/distributed/world/store_server.h"

namespace troupe::control_plane {
namespace {

// In the child: serves until it is killed, at the latest with its parent.
[[noreturn]] void serve(int out, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  try {
    const StoreServer server;
    const int port = server.port();
    if (::write(out, &port, sizeof(port)) != sizeof(port)) ::_exit(1);
    while (true) ::pause();
  } catch (const std::exception&) {
    ::_exit(1);
  }
}

}  // namespace

StoreProcess::StoreProcess() {
  std::array<int, 2> ends = {};
  if (::pipe(ends.data()) != 0) {
    fail_file(Code::kFileFailed, "the store's process", "make a pipe", errno);
  }
  const pid_t parent = ::getpid();
  id_ = ::fork();
  if (id_ == 0) serve(ends[1], parent);
  if (id_ < 0) fail_file(Code::kFileFailed, "the store's process", "fork", errno);
  ::close(ends[1]);
  ssize_t got = -1;
  do {
    got = ::read(ends[0], &address_.port, sizeof(address_.port));
  } while (got < 0 && errno == EINTR);
  ::close(ends[0]);
  if (got == sizeof(address_.port)) return;
  kill();
  fail(Code::kNoRendezvous, "the store's process", "did not begin to serve");
}

void StoreProcess::kill() {
  if (id_ <= 0) return;
  ::kill(id_, SIGKILL);
  while (::waitpid(id_, nullptr, 0) < 0 && errno == EINTR) {
  }
  id_ = -1;
}

}  // namespace troupe::control_plane
