// Whose process is at the other end of a connection, where that is a process of this machine.
//
// What ranks say to each other over TCP has no password: PyTorch's store tells anybody all its
// keys, and Gloo takes whoever connects first for the rank that it waits for. So the program takes
// no connection of another user's process at all (apps/accept.cpp).
#pragma once

#include <cstdint>
#include <optional>

namespace troupe {

// The user of a process of this machine that is at the other end of a TCP connection, as the kernel
// tells it. Absent: the other end is on another machine.
// kNobody: the process has closed its end already, so that nobody can say whose it was.
// kUntold: the kernel tells of no connection at all (it is built without tcp_diag, or the module
// is not loaded), not even of our own end.
constexpr int64_t kNobody = -1;
constexpr int64_t kUnknownUser = -2;
std::optional<int64_t> local_peer_user(int socket);

}  // namespace troupe
