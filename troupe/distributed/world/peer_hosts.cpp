#include "troupe/distributed/world/peer_hosts.h"

#include <arpa/inet.h>
#include <netdb.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "troupe/core/check.h"

namespace troupe {
namespace {

constexpr const char* kPeers = "TROUPE_PEERS";
constexpr int kByte = 8;

int bits_of(const PeerAddress& address) {
  return address.family == AF_INET ? 32 : 128;
}

// All addresses of a host; `flags` of getaddrinfo. Empty, with the reason: it is not known.
std::vector<PeerAddress> addresses_of(const std::string& host, int flags, std::string& reason) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  const int error = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    reason = ::gai_strerror(error);
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, ::freeaddrinfo);
  std::vector<PeerAddress> out;
  for (const addrinfo* at = all.get(); at != nullptr; at = at->ai_next) {
    sockaddr_storage storage{};
    std::memcpy(&storage, at->ai_addr, at->ai_addrlen);
    if (const auto address = address_of(storage)) out.push_back(*address);
  }
  return out;
}

}  // namespace

PeerHosts::PeerHosts(const std::string& list) {
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    std::string entry = list.substr(at, end - at);
    std::erase(entry, ' ');
    if (!entry.empty()) add(entry);
    at = end + 1;
  }
  if (!list.empty() && networks_.empty()) {
    fail(Code::kBadValue, kPeers, '"' + list + "\" names no machine; unset it to let all connect");
  }
}

void PeerHosts::add(const std::string& entry) {
  const size_t slash = entry.find('/');
  std::string reason;
  const std::vector<PeerAddress> found =
      addresses_of(entry.substr(0, slash), slash == std::string::npos ? 0 : AI_NUMERICHOST, reason);
  if (found.empty()) {
    fail(Code::kBadValue, kPeers,
         '"' + entry + "\" is no address, network (10.1.0.0/16) or name of a known host:", reason);
  }
  for (const PeerAddress& address : found) {
    int bits = bits_of(address);
    if (slash != std::string::npos) {
      const int most = bits;
      const char *const first = entry.data() + slash + 1, *const last = entry.data() + entry.size();
      const auto [end, error] = std::from_chars(first, last, bits);
      if (error != std::errc() || end != last || bits < 0 || bits > most) {
        fail(Code::kBadValue, kPeers, '"' + entry + "\" must end with a number of bits from 0 to",
             most);
      }
    }
    networks_.push_back({.address = address, .bits = bits});
  }
}

const PeerHosts& PeerHosts::of_environment() {
  static const PeerHosts peers([] {
    const char* const list = std::getenv(kPeers);
    return std::string(list == nullptr ? "" : list);
  }());
  return peers;
}

bool PeerHosts::has(const PeerAddress& peer) const {
  const auto is_in = [&](const Network& network) {
    if (peer.family != network.address.family) return false;
    const auto whole = static_cast<size_t>(network.bits / kByte);
    const int rest = network.bits % kByte;
    if (!std::equal(peer.bytes.begin(), peer.bytes.begin() + static_cast<std::ptrdiff_t>(whole),
                    network.address.bytes.begin())) {
      return false;
    }
    return rest == 0 || ((peer.bytes[whole] ^ network.address.bytes[whole]) >> (kByte - rest)) == 0;
  };
  return networks_.empty() || std::ranges::any_of(networks_, is_in);
}

bool PeerHosts::excludes(int socket) const {
  sockaddr_storage theirs{}, ours{};
  socklen_t their_size = sizeof(theirs), our_size = sizeof(ours);
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&theirs), &their_size) != 0 ||
      ::getsockname(socket, reinterpret_cast<sockaddr*>(&ours), &our_size) != 0) {
    return false;
  }
  const std::optional<PeerAddress> peer = address_of(theirs), own = address_of(ours);
  return peer && own && !peer->is_loopback() && !peer->same_host(*own) && !has(*peer);
}

}  // namespace troupe
