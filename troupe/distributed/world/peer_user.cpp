#include "troupe/distributed/world/peer_user.h"

#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "troupe/distributed/world/peer_address.h"

namespace troupe {
namespace {

struct Ask {
  nlmsghdr head{};
  inet_diag_req_v2 request{};
};
struct Answer {
  nlmsghdr head{};
  union {
    inet_diag_msg socket;
    nlmsgerr error;
  };
  std::array<char, 512> more{};  // attributes, which nobody asked for
};

// The user of the socket that has `theirs`, of a connection with `ours`, as the kernel tells it.
// Without tcp_diag a kernel answers ENOENT, as of a socket that is not there.
int64_t user_of(const PeerAddress& theirs, const PeerAddress& ours) {
  const int kernel = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  if (kernel < 0) return kUnknownUser;
  Ask ask;
  ask.head.nlmsg_len = sizeof(ask);
  ask.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  ask.head.nlmsg_flags = NLM_F_REQUEST;
  ask.request.sdiag_family = static_cast<uint8_t>(theirs.family);
  ask.request.sdiag_protocol = IPPROTO_TCP;
  ask.request.idiag_states = ~0U;
  ask.request.id.idiag_sport = theirs.port;
  ask.request.id.idiag_dport = ours.port;
  std::memcpy(ask.request.id.idiag_src, theirs.bytes.data(), theirs.bytes.size());
  std::memcpy(ask.request.id.idiag_dst, ours.bytes.data(), ours.bytes.size());
  ask.request.id.idiag_cookie[0] = ask.request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  Answer answer{};
  int64_t out = kUnknownUser;
  if (::send(kernel, &ask, sizeof(ask), 0) == static_cast<ssize_t>(sizeof(ask))) {
    const ssize_t got = ::recv(kernel, &answer, sizeof(answer), 0);
    const auto has = [&](size_t size) { return got >= static_cast<ssize_t>(NLMSG_LENGTH(size)); };
    if (answer.head.nlmsg_type == SOCK_DIAG_BY_FAMILY && has(sizeof(answer.socket))) {
      // A socket that its process has closed has no user and no inode any more.
      out = answer.socket.idiag_inode == 0 ? kNobody : int64_t{answer.socket.idiag_uid};
    } else if (answer.head.nlmsg_type == NLMSG_ERROR && has(sizeof(answer.error)) &&
               answer.error.error == -ENOENT) {
      out = kNobody;
    }
  }
  ::close(kernel);
  return out;
}

}  // namespace

std::optional<int64_t> local_peer_user(int socket) {
  sockaddr_storage theirs{}, ours{};
  socklen_t their_size = sizeof(theirs), our_size = sizeof(ours);
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&theirs), &their_size) != 0 ||
      ::getsockname(socket, reinterpret_cast<sockaddr*>(&ours), &our_size) != 0) {
    return {};
  }
  const std::optional<PeerAddress> peer = address_of(theirs), own = address_of(ours);
  if (!peer || !own || !(peer->is_loopback() || peer->same_host(*own))) return {};
  const int64_t user = user_of(*peer, *own);
  const bool known = user != kNobody || user_of(*own, *peer) >= 0;  // our own end is there
  return known ? user : kUnknownUser;
}

}  // namespace troupe
