// Where the ranks of a run meet: a server of small texts, in the process that starts them, so that
// it outlives each of them. Ranks reach it with Place::launcher_has_store.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace troupe {

// A socket that listens at an address of `host` alone, so that no other network reaches it; E6002
// where the port is taken. -1: none of the host's addresses is this machine's.
int listen_at(const std::string& host, int port);
int port_of(int socket);

// At the loopback interface: its ranks are of this machine.
class MeetingPoint {
 public:
  explicit MeetingPoint(int port = 0);  // 0: any that is free. E6002 where it cannot be had
  ~MeetingPoint();
  int port() const;

 private:
  struct Server;
  std::unique_ptr<Server> server_;
};

// Until a store's server answers there. E6002 with why none does, after `timeout`; what `check`
// throws, which is called again and again, may end it before.
void wait_for_server(const std::string& host, int port, std::chrono::milliseconds timeout,
                     const std::function<void()>& check);

}  // namespace troupe
