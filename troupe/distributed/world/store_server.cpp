#include "troupe/distributed/world/store_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <system_error>
#include <thread>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/device/limits.h"
#include "troupe/core/file/file.h"
#include "troupe/core/text/first_line.h"
#include "troupe/ops/support/torch_versions/tcp_store_protocol.h"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kPause{100}, kAnswer{500};

constexpr const char* kStranger =
    "what listens there is not a store (TCPStore): another program's port?";

// 0, or why one address does not answer.
int connect_error(int socket, const addrinfo& at, Milliseconds most = kAnswer) {
  int error = ::connect(socket, at.ai_addr, at.ai_addrlen) == 0 ? 0 : errno;
  if (error == EINPROGRESS) {
    pollfd ready{socket, POLLOUT, 0};
    socklen_t size = sizeof(error);
    if (::poll(&ready, 1, static_cast<int>(most.count())) == 0) {
      error = ETIMEDOUT;
    } else if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
      error = errno;
    }
  }
  return error;
}

// Pings the peer as a TCPStore client would: only a store sends the number back. PyTorch's own
// client would wait for the answer forever.
bool is_store(int socket, Milliseconds most) {
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
  uint32_t answer = 0;
  return ::poll(&ready, 1, static_cast<int>(most.count())) == 1 &&
         ::recv(socket, &answer, sizeof(answer), 0) == sizeof(answer) && answer == kNumber;
}

// Empty, or why no store answers at one address.
std::string trouble_at(const addrinfo& at, Milliseconds most) {
  const int socket = ::socket(at.ai_family, at.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket < 0) return std::strerror(errno);
  const int error = connect_error(socket, at, most);
  std::string out;
  if (error != 0) {
    out = std::strerror(error);
  } else if (!is_store(socket, most)) {
    out = kStranger;
  }
  ::close(socket);
  return out;
}

// E6002 where this machine cannot connect to its own socket: the client that PyTorch's store makes
// for itself would try for minutes and ignore signals.
void require_reachable(int listening, const std::string& host) {
  sockaddr_storage own{};
  socklen_t size = sizeof(own);
  if (::getsockname(listening, reinterpret_cast<sockaddr*>(&own), &size) != 0) return;
  addrinfo at{};
  at.ai_addr = reinterpret_cast<sockaddr*>(&own);
  at.ai_addrlen = size;
  const int socket = ::socket(own.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  const int error = socket < 0 ? errno : connect_error(socket, at);
  if (socket >= 0) ::close(socket);
  if (error == EMFILE) ::close(listening);
  if (error == EMFILE) fail_file(Code::kFileFailed, host, "open a socket at", error);
  if (error == 0) return;
  ::close(listening);
  fail(Code::kNoRendezvous, host, "this machine cannot connect to itself:",
       std::string(std::strerror(error)) +
           ". Is that interface up? For the loopback interface: ip link set lo up");
}

std::string text_of(const sockaddr& at) {
  std::array<char, INET6_ADDRSTRLEN> out{};
  const void* const bytes =
      at.sa_family == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(at).sin_addr)
          : &reinterpret_cast<const sockaddr_in6&>(at).sin6_addr;
  const bool is_internet = at.sa_family == AF_INET || at.sa_family == AF_INET6;
  if (!is_internet || ::inet_ntop(at.sa_family, bytes, out.data(), out.size()) == nullptr)
    return {};
  return out.data();
}

// The addresses of this machine's interfaces that a name stands for here, but for the loopback's.
std::vector<std::string> own_addresses(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, ::freeaddrinfo);
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> interfaces(list, ::freeifaddrs);
  std::vector<std::string> out;
  for (const addrinfo* at = all.get(); at != nullptr; at = at->ai_next) {
    const std::string text = text_of(*at->ai_addr);
    for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
      const bool is = one->ifa_addr != nullptr && (one->ifa_flags & IFF_LOOPBACK) == 0 &&
                      text_of(*one->ifa_addr) == text;
      if (is && std::ranges::count(out, text) == 0) out.push_back(text);
    }
  }
  return out;
}

}  // namespace

std::string why_no_server(const std::string& host, int port, Milliseconds most) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  const int unknown = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (unknown != 0) return std::string("the host is not known: ") + ::gai_strerror(unknown);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, ::freeaddrinfo);
  std::string trouble;
  for (const addrinfo* at = all.get(); at != nullptr; at = at->ai_next) {
    trouble = trouble_at(*at, most);
    if (trouble.empty()) return {};
  }
  return trouble;
}

void wait_for_server(const std::string& host, int port, Milliseconds timeout,
                     const std::function<void()>& check) {
  const auto end = Clock::now() + timeout;
  while (true) {
    if (check) check();
    const std::string trouble = why_no_server(host, port, kAnswer);
    if (trouble.empty()) return;
    if (Clock::now() >= end) {
      fail(Code::kNoRendezvous, host + ':' + std::to_string(port), "rank 0 was not there within",
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
    if (socket < 0) {
      if (errno == EMFILE) fail_file(Code::kFileFailed, host, "open a socket at", errno);
      continue;
    }
    const int yes = 1;  // a port that another run has just left is free
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (::bind(socket, at->ai_addr, at->ai_addrlen) == 0 && ::listen(socket, SOMAXCONN) == 0) {
      require_reachable(socket, host);
      return socket;
    }
    if (errno != EADDRNOTAVAIL) error = errno;
    ::close(socket);
  }
  if (error == EADDRNOTAVAIL) return -1;
  fail(Code::kNoRendezvous, host + ':' + std::to_string(port),
       "cannot listen:", std::string(::strerrorname_np(error)) + ",", std::strerror(error));
}

bool is_address(const std::string& host) {
  in6_addr any{};
  return ::inet_pton(AF_INET, host.c_str(), &any) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &any) == 1;
}

Listening listening_for_machines(const std::string& host) {
  if (is_address(host)) return {.address = host};
  std::vector<std::string> own = own_addresses(host);
  const auto is_four = [](const std::string& text) { return text.find(':') == std::string::npos; };
  if (std::ranges::any_of(own, is_four)) std::erase_if(own, std::not_fn(is_four));
  if (own.size() == 1) return {.address = own.front()};
  std::string what = own.empty() ? "no address of an interface of this machine" : own.front();
  for (size_t i = 1; i < own.size(); ++i) what.append(" and ").append(own[i]);
  return {.exposure = "MASTER_ADDR: \"" + host + "\" is " + what +
                      " here, so rank 0 listens at all interfaces. Set MASTER_ADDR to the address "
                      "by which the other machines reach this one"};
}

int port_of(int socket) {
  sockaddr_storage at{};
  socklen_t size = sizeof(at);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&at), &size) != 0) return 0;
  const bool six = at.ss_family == AF_INET6;
  return ntohs(six ? reinterpret_cast<const sockaddr_in6*>(&at)->sin6_port
                   : reinterpret_cast<const sockaddr_in*>(&at)->sin_port);
}

void fail_for_thread(const std::string& where, const std::system_error& error) {
  fail(Code::kFileFailed, where, "the system starts no thread for its connections:",
       first_line(error.what()) + limits_behind(error.code().value()));
}

struct StoreServer::Server {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

StoreServer::StoreServer(int port) : server_(std::make_unique<Server>()) {
  constexpr const char* kLoopback = "127.0.0.1";
  c10d::TCPStoreOptions options;
  const int socket = listen_at(kLoopback, port);
  if (socket >= 0) options.masterListenFd = socket;
  options.port = static_cast<uint16_t>(socket >= 0 ? port_of(socket) : port);
  options.isServer = true;
  options.waitWorkers = false;
  try {
    server_->store = c10::make_intrusive<c10d::TCPStore>(kLoopback, options);
  } catch (const std::system_error& e) {
    fail_for_thread("port " + std::to_string(options.port), e);
  } catch (const std::exception& e) {
    fail(Code::kNoRendezvous, "port " + std::to_string(port), first_line(e.what()));
  }
}

StoreServer::~StoreServer() = default;

int StoreServer::port() const {
  return server_->store->getPort();
}

}  // namespace troupe
