// The machines whose processes may connect to a run of several machines.
//
// TROUPE_PEERS lists them: addresses, networks ("10.1.0.0/16") and names, with commas between. What
// connects from elsewhere is closed before anybody reads from it (apps/accept.cpp): it sees no key
// of PyTorch's store, fills none of its memory, and is no peer of Gloo or NCCL. Without the
// variable every machine may connect.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/distributed/world/peer_address.h"

namespace troupe {

class PeerHosts {
 public:
  // Names are looked up once, here. E2005 names the entry that is no address, network or known
  // name.
  explicit PeerHosts(const std::string& list);
  // TROUPE_PEERS, read at the first call.
  static const PeerHosts& of_environment();

  bool has(const PeerAddress& peer) const;  // true for each address where the list is empty
  // Whether the other end of a connection is on another machine, and not on one that is listed.
  // False for what is no connection of the Internet.
  bool excludes(int socket) const;

 private:
  struct Network {
    PeerAddress address;
    int bits;  // of its address, from the left, that a member shares
  };
  void add(const std::string& entry);

  std::vector<Network> networks_;
};

}  // namespace troupe
