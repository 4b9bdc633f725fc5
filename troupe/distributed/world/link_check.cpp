#include "troupe/distributed/world/link_check.h"

#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <thread>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/file/host_name.h"
#include "troupe/core/text/first_line.h"
#include "troupe/distributed/world/key_value_store.h"
#include "troupe/distributed/world/store_server.h"

namespace troupe {
namespace {

using Milliseconds = std::chrono::milliseconds;
using Buffer = std::vector<uint8_t>;

constexpr const char* kClock = "clock";      // the host's, in milliseconds since 1970
constexpr const char* kReports = "reports";  // how many there are: report/1 and so on
constexpr Milliseconds kTick{100}, kAnswer{5'000}, kTimeout{30'000};
constexpr size_t kPayload = size_t{2} << 20;  // the store takes 8 MiB at most
constexpr size_t kLongestReport = 500;
constexpr int kRoundTrips = 3, kTransfers = 2;

Buffer bytes_of(const std::string& text) {
  return {text.begin(), text.end()};
}

std::string text_of(const Buffer& bytes) {
  return {bytes.begin(),
          bytes.begin() + static_cast<std::ptrdiff_t>(std::min(bytes.size(), kLongestReport))};
}

std::string report_key(int64_t number) {
  return "report/" + std::to_string(number);
}

int64_t milliseconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<Milliseconds>(now).count();
}

c10::intrusive_ptr<c10d::TCPStore> open_store(const std::string& host, int port, int socket) {
  c10d::TCPStoreOptions how;
  how.port = static_cast<uint16_t>(port);
  how.isServer = socket >= 0;
  how.waitWorkers = false;
  how.timeout = kTimeout;
  if (socket >= 0) how.masterListenFd = socket;
  return c10::make_intrusive<c10d::TCPStore>(host, how);
}

// What PyTorch throws, as an error that names the host.
template <class F>
auto with_host(const std::string& host, int port, F&& f) {
  try {
    return f();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    fail(Code::kNoRendezvous, host + ':' + std::to_string(port), first_line(e.what()));
  }
}

double seconds_of(const Faults& faults, const std::function<void()>& transfer) {
  const auto begin = std::chrono::steady_clock::now();
  faults.at("check.link");
  transfer();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

LinkMeasure measure(c10d::Store& store, const Faults& faults) {
  LinkMeasure out{.round_trip = std::numeric_limits<double>::infinity()};
  store.wait({kClock}, kTimeout);
  for (int i = 0; i < kRoundTrips; ++i) {
    Buffer clock;
    const double seconds = seconds_of(faults, [&] { clock = store.get(kClock); });
    if (seconds >= out.round_trip) continue;
    // The host's clock was read at some moment of the round trip, on average in its middle.
    const int64_t there = number_of_peer(text_of(clock), "the host's clock");
    out.round_trip = seconds;
    out.clock_ahead = static_cast<double>(milliseconds_now() - there) / 1e3 - seconds / 2;
  }
  const std::string key = "payload/" + host_name() + '/' + std::to_string(::getpid());
  const Buffer payload(kPayload, uint8_t{0x5A});
  for (int i = 0; i < kTransfers; ++i) {
    const double seconds = seconds_of(faults, [&] {
      store.set(key, payload);
      if (store.get(key) != payload) {
        throw Error("the store gave back other bytes than it got", Code::kNoRendezvous);
      }
    });
    out.rate = std::max(out.rate, 2.0 * static_cast<double>(kPayload) / seconds);
  }
  store.deleteKey(key);
  return out;
}

}  // namespace

int listen_for_checks(const std::string& host, int port) {
  const Listening at = listening_for_machines(host);
  if (at.address.empty()) return -1;
  try {
    return listen_at(at.address, port);
  } catch (const Error&) {  // another process of this machine has the port
    return -1;
  }
}

void serve_checks(int socket, const std::string& host,
                  const std::function<void(const std::string& report)>& show) {
  const int port = port_of(socket);
  with_host(host, port, [&] {
    const auto store = open_store(listening_for_machines(host).address, port, socket);
    for (int64_t shown = 0;; std::this_thread::sleep_for(kTick)) {
      store->set(kClock, bytes_of(std::to_string(milliseconds_now())));
      for (; store->check({report_key(shown + 1)}); ++shown) {
        show(text_of(store->get(report_key(shown + 1))));
      }
    }
  });
}

void wait_for_checks(const std::string& host, int port, Milliseconds most) {
  const auto end = std::chrono::steady_clock::now() + most;
  while (true) {
    const std::string why = why_no_server(host, port, kAnswer);
    if (why.empty()) return;
    if (std::chrono::steady_clock::now() >= end) {
      fail(Code::kNoRendezvous, host + ':' + std::to_string(port),
           "the host that machines are checked against did not answer within",
           std::to_string(most.count() / 1000) + " s:",
           why +
               ". Start the same command there, and name it by the address that other machines "
               "reach it at");
    }
    std::this_thread::sleep_for(kTick);
  }
}

LinkMeasure measure_link(const std::string& host, int port, const Faults& faults) {
  return with_host(host, port, [&] { return measure(*open_store(host, port, -1), faults); });
}

void report_to_host(const std::string& host, int port, const std::string& report) {
  with_host(host, port, [&] {
    const auto store = open_store(host, port, -1);
    const std::string key = report_key(store->add(kReports, 1));
    store->set(key, bytes_of(report.substr(0, kLongestReport)));
    store->check({key});  // its answer comes after the server has the text
  });
}

}  // namespace troupe
