// The Internet address of one end of a connection.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <optional>

namespace troupe {

// An IPv4 address that is written as IPv6 (::ffff:10.0.0.1) is the IPv4 address.
struct PeerAddress {
  int family = AF_UNSPEC;  // AF_INET: the first four bytes; AF_INET6: all of them
  std::array<uint8_t, 16> bytes{};
  in_port_t port = 0;  // in the network's order

  bool same_host(const PeerAddress& other) const {
    return family == other.family && bytes == other.bytes;
  }
  bool is_loopback() const;
};

// Absent: not of the Internet.
std::optional<PeerAddress> address_of(const sockaddr_storage& at);

}  // namespace troupe
