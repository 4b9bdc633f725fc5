#include "troupe/distributed/world/link_check.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <string>

#include "troupe/distributed/world/store_server.h"
#include "troupe/testing/files.h"

namespace troupe {
namespace {

constexpr const char* kHost = "127.0.0.1";

// A process that serves the checks, as a launcher has one; what machines report goes into a pipe.
class Host {
 public:
  Host() : socket_(listen_for_checks(kHost, 0)), port_(port_of(socket_)) {
    EXPECT_EQ(::pipe(reports_), 0);
    pid_ = ::fork();
    if (pid_ != 0) return;
    try {
      serve_checks(socket_, kHost, [this](const std::string& report) {
        if (::write(reports_[1], report.data(), report.size()) < 0) ::_exit(1);
      });
    } catch (const std::exception&) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  ~Host() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    for (const int fd : {socket_, reports_[0], reports_[1]}) ::close(fd);
  }
  int port() const { return port_; }
  std::string report() const {
    std::string out(1000, '\0');
    const ssize_t n = ::read(reports_[0], out.data(), out.size());
    out.resize(n > 0 ? static_cast<size_t>(n) : 0);
    return out;
  }

 private:
  int socket_, port_, reports_[2] = {-1, -1};
  pid_t pid_ = -1;
};

TEST(LinkCheck, F190_LinkAndClockAreThoseOfTheHostAndASlowLinkIsMeasuredSlow) {
  const Host host;
  wait_for_checks(kHost, host.port(), std::chrono::minutes(1));
  const LinkMeasure link = measure_link(kHost, host.port(), Faults());
  EXPECT_GT(link.round_trip, 0);
  EXPECT_GT(link.rate, 0);
  EXPECT_LT(std::abs(link.clock_ahead), 60);  // one clock, on a machine that does other things
  const LinkMeasure slow = measure_link(kHost, host.port(), Faults("check.link=sleep:300"));
  EXPECT_GE(slow.round_trip, 0.3);
  EXPECT_LT(slow.rate, 2 * (2 << 20) / 0.3 + 1);
  report_to_host(kHost, host.port(), "machine b stays out");
  EXPECT_EQ(host.report(), "machine b stays out");
}

TEST(LinkCheck, F190_AHostThatDoesNotServeIsNamed) {
  EXPECT_EQ(listen_for_checks("192.0.2.1", 0), -1);  // of no machine: RFC 5737
  const int taken = listen_for_checks(kHost, 0);
  ASSERT_GE(taken, 0);
  const int port = port_of(taken);
  EXPECT_EQ(listen_for_checks(kHost, port), -1);  // another launcher of this machine serves
  ::close(taken);
  const std::string what = testing::refusal_code(
      Code::kNoRendezvous, [&] { wait_for_checks(kHost, port, std::chrono::milliseconds(1)); });
  EXPECT_NE(what.find(kHost + std::string(":") + std::to_string(port)), std::string::npos) << what;
}

}  // namespace
}  // namespace troupe
