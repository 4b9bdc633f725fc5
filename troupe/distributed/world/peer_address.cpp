#include "troupe/distributed/world/peer_address.h"

#include <cstring>

namespace troupe {

bool PeerAddress::is_loopback() const {
  constexpr uint8_t kLoopbackNet = 127;
  return family == AF_INET ? bytes[0] == kLoopbackNet
                           : std::memcmp(bytes.data(), &in6addr_loopback, bytes.size()) == 0;
}

std::optional<PeerAddress> address_of(const sockaddr_storage& at) {
  PeerAddress out{.family = at.ss_family};
  if (at.ss_family == AF_INET) {
    const auto& four = reinterpret_cast<const sockaddr_in&>(at);
    std::memcpy(out.bytes.data(), &four.sin_addr, sizeof(four.sin_addr));
    out.port = four.sin_port;
    return out;
  }
  if (at.ss_family != AF_INET6) return {};
  const auto& six = reinterpret_cast<const sockaddr_in6&>(at);
  out.port = six.sin6_port;
  if (IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
    constexpr size_t kFour = 12;  // where the four bytes begin
    out.family = AF_INET;
    std::memcpy(out.bytes.data(), six.sin6_addr.s6_addr + kFour, sizeof(in_addr));
  } else {
    std::memcpy(out.bytes.data(), &six.sin6_addr, out.bytes.size());
  }
  return out;
}

}  // namespace troupe
