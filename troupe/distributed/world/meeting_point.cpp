#include "troupe/distributed/world/meeting_point.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStoreBackend.hpp>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>

#include "troupe/core/check.h"
#include "troupe/core/text/first_line.h"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kPause{100}, kAnswer{500};

constexpr const char* kStranger = "what listens there is no meeting point: another program's port?";

// 0, or why one address does not answer.
int connect_error(int socket, const addrinfo& at) {
  int error = ::connect(socket, at.ai_addr, at.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd ready{socket, POLLOUT, 0};
    socklen_t size = sizeof(error);
    if (::poll(&ready, 1, static_cast<int>(kAnswer.count())) == 0) {
      error = ETIMEDOUT;
    } else if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
      error = errno;
    }
  }
  return error;
}

// Whether a store's server is at the other end: it sends a number back. PyTorch's own client would
// wait for that without an end.
bool is_store(int socket) {
  using c10d::detail::QueryType;
  constexpr uint32_t kNumber = 0x7e0e7e0e;
  std::array<std::byte, 2 * (1 + sizeof(uint32_t))> asked{};
  size_t at = 0;
  const auto put = [&](QueryType type, uint32_t number) {
    asked[at++] = static_cast<std::byte>(type);
    const auto bytes = std::bit_cast<std::array<std::byte, sizeof(number)>>(number);
    for (const std::byte b : bytes) asked[at++] = b;
  };
  put(QueryType::VALIDATE, c10d::detail::validationMagicNumber);
  put(QueryType::PING, kNumber);
  if (::send(socket, asked.data(), asked.size(), MSG_NOSIGNAL) != std::ssize(asked)) return false;
  pollfd ready{socket, POLLIN, 0};
  uint32_t told = 0;
  return ::poll(&ready, 1, static_cast<int>(kAnswer.count())) == 1 &&
         ::recv(socket, &told, sizeof(told), 0) == sizeof(told) && told == kNumber;
}

// Empty, or why no store answers at one address.
std::string trouble_at(const addrinfo& at) {
  const int socket = ::socket(at.ai_family, at.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket < 0) return std::strerror(errno);
  const int error = connect_error(socket, at);
  std::string out;
  if (error != 0) {
    out = std::strerror(error);
  } else if (!is_store(socket)) {
    out = kStranger;
  }
  ::close(socket);
  return out;
}

// Empty, or why nobody is reached.
std::string trouble_with(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int unknown = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (unknown != 0) return std::string("the host is not known: ") + ::gai_strerror(unknown);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, ::freeaddrinfo);
  std::string trouble;
  for (const addrinfo* at = all.get(); at != nullptr; at = at->ai_next) {
    trouble = trouble_at(*at);
    if (trouble.empty()) return {};
  }
  return trouble;
}

}  // namespace

void wait_for_server(const std::string& host, int port, Milliseconds timeout,
                     const std::function<void()>& check) {
  const auto end = Clock::now() + timeout;
  while (true) {
    if (check) check();
    const std::string trouble = trouble_with(host, port);
    if (trouble.empty()) return;
    if (Clock::now() >= end) {
      fail(Code::kNoMeeting, host + ':' + std::to_string(port), "rank 0 was not there within",
           timeout.count() / 1000, "s (run.start_timeout):",
           trouble + ". Set MASTER_ADDR to rank 0's machine and MASTER_PORT to a free port");
    }
    std::this_thread::sleep_for(kPause);
  }
}

int listen_at(const std::string& host, int port) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return -1;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, ::freeaddrinfo);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* at = all.get(); at != nullptr; at = at->ai_next) {
    const int socket = ::socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket < 0) continue;
    const int yes = 1;  // a port that another run has just left is free
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (::bind(socket, at->ai_addr, at->ai_addrlen) == 0 && ::listen(socket, SOMAXCONN) == 0) {
      return socket;
    }
    if (errno != EADDRNOTAVAIL) error = errno;
    ::close(socket);
  }
  if (error == EADDRNOTAVAIL) return -1;
  fail(Code::kNoMeeting, host + ':' + std::to_string(port),
       "cannot listen:", std::string(::strerrorname_np(error)) + ",", std::strerror(error));
}

int port_of(int socket) {
  sockaddr_storage at{};
  socklen_t size = sizeof(at);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&at), &size) != 0) return 0;
  const bool six = at.ss_family == AF_INET6;
  return ntohs(six ? reinterpret_cast<const sockaddr_in6*>(&at)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&at)->sin_port);
}

struct MeetingPoint::Server {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

MeetingPoint::MeetingPoint(int port) : server_(std::make_unique<Server>()) {
  constexpr const char* kLoopback = "127.0.0.1";
  c10d::TCPStoreOptions options;
  const int socket = listen_at(kLoopback, port);
  if (socket >= 0) options.masterListenFd = socket;
  options.port = static_cast<uint16_t>(socket >= 0 ? port_of(socket) : port);
  options.isServer = true;
  options.waitWorkers = false;
  try {
    server_->store = c10::make_intrusive<c10d::TCPStore>(kLoopback, options);
  } catch (const std::exception& e) {
    fail(Code::kNoMeeting, "port " + std::to_string(port), first_line(e.what()));
  }
}

MeetingPoint::~MeetingPoint() = default;

int MeetingPoint::port() const {
  return server_->store->getPort();
}

}  // namespace troupe
