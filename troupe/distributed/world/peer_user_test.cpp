#include "troupe/distributed/world/peer_user.h"

#include <gtest/gtest.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace {
bool g_without_tcp_diag = false;  // whether the kernel of this test is built without it
}

// As such a kernel answers: ENOENT, whatever is asked.
extern "C" ssize_t recv(int socket, void* into, size_t size, int flags) {
  const ssize_t got = ::recvfrom(socket, into, size, flags, nullptr, nullptr);
  if (!g_without_tcp_diag) return got;
  struct {
    nlmsghdr head{};
    nlmsgerr error{};
  } answer;
  answer.head.nlmsg_type = NLMSG_ERROR;
  answer.error.error = -ENOENT;
  std::memcpy(into, &answer, sizeof(answer));
  return sizeof(answer);
}

namespace troupe {
namespace {

constexpr uid_t kStranger = 65534;

int connected(int port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(static_cast<uint16_t>(port));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int out = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  return ::connect(out, reinterpret_cast<sockaddr*>(&at), sizeof(at)) == 0 ? out : -1;
}

struct Listener {
  Listener() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    auto* const any = reinterpret_cast<sockaddr*>(&at);
    EXPECT_TRUE(::bind(socket, any, size) == 0 && ::listen(socket, 8) == 0 &&
                ::getsockname(socket, any, &size) == 0);
    port = ntohs(at.sin_port);
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  ~Listener() { ::close(socket); }

  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  int port = 0;
};

// The next connection, which the kernel has already made.
int taken(int listener) {
  return static_cast<int>(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
}

TEST(PeerUser, F169_AProcessOfTheSameUserIsKnown) {
  const Listener listener;
  const int ours = connected(listener.port);
  ASSERT_GE(ours, 0);
  const int socket = taken(listener.socket);
  ASSERT_GE(socket, 0);
  EXPECT_EQ(local_peer_user(socket), int64_t{::geteuid()});
  ::close(ours);  // it has said what it had to say: nobody's now
  EXPECT_EQ(local_peer_user(socket), kNobody);
  ::close(socket);
}

TEST(PeerUser, F174_AKernelThatDoesNotTellIsNoStranger) {
  const Listener listener;
  const int ours = connected(listener.port), socket = taken(listener.socket);
  ASSERT_TRUE(ours >= 0 && socket >= 0);
  g_without_tcp_diag = true;
  const auto unknown = local_peer_user(socket);
  g_without_tcp_diag = false;
  EXPECT_EQ(unknown, kUnknownUser);
  EXPECT_EQ(local_peer_user(socket), int64_t{::geteuid()});
  for (const int fd : {ours, socket}) ::close(fd);
}

TEST(PeerUser, F169_OfNoConnectionAndOfNoTcpNothingIsKnown) {
  std::array<int, 2> pair{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()), 0);
  EXPECT_EQ(local_peer_user(pair[0]), std::nullopt);
  EXPECT_EQ(local_peer_user(-1), std::nullopt);
  for (const int fd : pair) ::close(fd);
}

TEST(PeerUser, F169_AProcessOfAnotherUserIsOne) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs to be root, to start another user's process";
  const Listener listener;
  std::array<int, 2> until{};
  ASSERT_EQ(::pipe(until.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(until[1]);
    char end = 0;
    const bool is = ::setuid(kStranger) == 0 && connected(listener.port) >= 0;
    ::_exit(is && ::read(until[0], &end, 1) == 0 ? 0 : 1);
  }
  const int socket = taken(listener.socket);
  ASSERT_GE(socket, 0);
  EXPECT_EQ(local_peer_user(socket), int64_t{kStranger});
  for (const int fd : {until[0], until[1], socket}) ::close(fd);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace troupe
