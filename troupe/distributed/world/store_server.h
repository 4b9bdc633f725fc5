// The server of the key-value store, for a launcher: it runs in the process that starts the ranks
// and so outlives each of them. Ranks connect to it with LauncherEnvironment::launcher_has_store.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <system_error>

namespace troupe {

// Listens at an address of `host` only, so that no other network reaches it. E6002 if the port is
// taken, or the interface is down. -1 if none of the host's addresses belongs to this machine.
int listen_at(const std::string& host, int port);
// Whether `host` is an address and not a name: all machines mean the same by it.
bool is_address(const std::string& host);

// Where rank 0 listens for ranks of other machines, which may know a name by other addresses than
// this one does (/etc/hosts has 127.0.1.1 for a machine's own name).
struct Listening {
  std::string address = {};   // the one to listen at; empty: all interfaces
  std::string exposure = {};  // why it is all of them, for a warning
};
// An address is taken as it is; a name if this machine has exactly one address by that name that
// is not the loopback interface's, of IPv4 if there are both.
Listening listening_for_machines(const std::string& host);
int port_of(int socket);
// E7002 for what std::thread throws where the system refuses a connection's thread.
[[noreturn]] void fail_for_thread(const std::string& where, const std::system_error& error);

// Listens at the loopback interface: its ranks run on this machine.
class StoreServer {
 public:
  explicit StoreServer(int port = 0);  // 0: any free port. E6002 if it cannot listen
  ~StoreServer();
  int port() const;

 private:
  struct Server;
  std::unique_ptr<Server> server_;
};

// Why no store answers at that address within `most`; empty: one does.
std::string why_no_server(const std::string& host, int port, std::chrono::milliseconds most);

// Waits until a store answers at that address. E6002 after `timeout`, with the reason. `check` is
// called while waiting and may throw.
void wait_for_server(const std::string& host, int port, std::chrono::milliseconds timeout,
                     const std::function<void()>& check);

}  // namespace troupe
