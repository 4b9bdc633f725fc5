// accept() of this program: connections of other users' processes, and of machines that are not
// TROUPE_PEERS, are closed before anybody reads from them.
//
// Ranks listen for each other at ports: PyTorch's store, Gloo's and NCCL's sockets. All three are
// libraries, none asks who calls, and on a machine that others use too anybody may call. So the
// program has an accept() of its own, which the dynamic linker finds before libc's for every
// library that is loaded with it. What comes from other machines passes if TROUPE_PEERS lists them,
// or is not set (docs/guide/many_ranks.md). A process that closes its end at once is nobody's and
// does not pass, but to NCCL: a rank's first word to rank 0 comes from a socket that is closed by
// then, and NCCL takes none that does not begin with the number of its communicator, which the
// ranks have from the store. Where the kernel does not tell whose a connection is, all of this
// machine pass.
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <string_view>

#include "troupe/distributed/world/peer_hosts.h"
#include "troupe/distributed/world/peer_user.h"

namespace {

constexpr std::string_view kOtherUser =
    "troupe: a process of another user of this machine connects to a port of this run; it is "
    "turned away\n";
constexpr std::string_view kUnknownUserWarning =
    "troupe: this kernel does not say whose a connection is (it lacks tcp_diag; as root: modprobe "
    "tcp_diag): other users of this machine could connect to the ports of this run\n";
constexpr std::string_view kOtherMachine =
    "troupe: a machine that TROUPE_PEERS does not list connects to a port of this run; it is "
    "turned away\n";

void say_once(std::atomic_flag& said, std::string_view line) {
  if (!said.test_and_set() && ::write(STDERR_FILENO, line.data(), line.size()) < 0) return;
}

// Whether code of NCCL, in a library of its own or within PyTorch's, has made the call.
bool is_nccl(const void* caller) {
  Dl_info library{};
  if (::dladdr(caller, &library) == 0 || library.dli_fname == nullptr) return false;
  const std::string_view path = library.dli_fname;
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return name.starts_with("libnccl") || name.starts_with("libtorch_cuda");
}

// Whether what connects is no rank of this run; says so, once for each reason.
bool is_stranger(int socket, const void* caller) {
  static std::atomic_flag user_said, unknown_said, machine_said;
  if (const auto user = troupe::local_peer_user(socket)) {
    if (*user == static_cast<int64_t>(::geteuid())) return false;
    if (*user == troupe::kNobody) return !is_nccl(caller);
    say_once(*user == troupe::kUnknownUser ? unknown_said : user_said,
             *user == troupe::kUnknownUser ? kUnknownUserWarning : kOtherUser);
    return *user != troupe::kUnknownUser;
  }
  if (!troupe::PeerHosts::of_environment().excludes(socket)) return false;
  say_once(machine_said, kOtherMachine);
  return true;
}

int accept_rank(int listener, sockaddr* address, socklen_t* size, int flags, const void* caller) {
  const socklen_t room = size == nullptr ? 0 : *size;
  while (true) {
    if (size != nullptr) *size = room;
    const auto socket = static_cast<int>(::syscall(SYS_accept4, listener, address, size, flags));
    if (socket < 0 || !is_stranger(socket, caller)) return socket;
    ::close(socket);
  }
}

}  // namespace

extern "C" {

__attribute__((visibility("default"))) int accept4(int listener, sockaddr* address, socklen_t* size,
                                                   int flags) {
  return accept_rank(listener, address, size, flags, __builtin_return_address(0));
}

__attribute__((visibility("default"))) int accept(int listener, sockaddr* address,
                                                  socklen_t* size) {
  return accept_rank(listener, address, size, 0, __builtin_return_address(0));
}

}  // extern "C"
