// The server of the store in a process of its own, as a launcher has it: what it needs of memory is
// counted apart, and it can be killed.
#pragma once

#include <sys/types.h>

#include "bench/control_plane/counted_store.h"

namespace troupe::control_plane {

class StoreProcess {
 public:
  // Forks: while no rank of this process does anything. E6002 if the server does not begin.
  StoreProcess();
  StoreProcess(const StoreProcess&) = delete;
  StoreProcess& operator=(const StoreProcess&) = delete;
  ~StoreProcess() { kill(); }

  const StoreAddress& address() const { return address_; }
  pid_t id() const { return id_; }
  void kill();  // by SIGKILL; waits until it is gone

 private:
  pid_t id_ = -1;
  StoreAddress address_;
};

}  // namespace troupe::control_plane
