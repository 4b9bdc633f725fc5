// The link and the clocks between a machine and the host that the machines of a run are checked
// against, before any of them joins (`troupe launch --check-against`). That host serves a key-value
// store for it; nothing here starts a run or is part of its rendezvous.
//
//   const int socket = listen_for_checks(host, port);  // on each machine; -1: it is not the host
//   serve_checks(socket, host, show);                  // in a process of its own
//   const LinkMeasure link = measure_link(host, port, faults);
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "troupe/core/file/fault.h"

namespace troupe {

struct LinkMeasure {
  double round_trip = 0;   // seconds, the shortest of a few
  double rate = 0;         // bytes a second of a few MiB, there and back
  double clock_ahead = 0;  // seconds by which this machine's clock is before the host's; to 0.1 s
};

// A socket at the port, where `host` is an address of this machine, or a name of exactly one (as
// listening_for_machines) and no other process here serves the port. Else -1.
int listen_for_checks(const std::string& host, int port);

// Serves the store until it fails or the process ends. `show` gets what machines report.
void serve_checks(int socket, const std::string& host,
                  const std::function<void(const std::string& report)>& show);

// Waits until the host serves. E6002 after `most`, with the reason.
void wait_for_checks(const std::string& host, int port, std::chrono::milliseconds most);

// The point "check.link" of `faults` is in each transfer. E6002 where the store is gone; waits for
// as long as a transfer takes.
LinkMeasure measure_link(const std::string& host, int port, const Faults& faults);

// Sends a line to the host, for its log.
void report_to_host(const std::string& host, int port, const std::string& report);

}  // namespace troupe
