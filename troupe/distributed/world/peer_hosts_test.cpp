#include "troupe/distributed/world/peer_hosts.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <string>

#include "troupe/testing/files.h"

namespace troupe {
namespace {

PeerAddress address(const std::string& text) {
  sockaddr_storage at{};
  auto& four = reinterpret_cast<sockaddr_in&>(at);
  auto& six = reinterpret_cast<sockaddr_in6&>(at);
  if (::inet_pton(AF_INET, text.c_str(), &four.sin_addr) == 1) {
    at.ss_family = AF_INET;
  } else if (::inet_pton(AF_INET6, text.c_str(), &six.sin6_addr) == 1) {
    at.ss_family = AF_INET6;
  }
  const std::optional<PeerAddress> out = address_of(at);
  EXPECT_TRUE(out.has_value()) << text;
  return out.value_or(PeerAddress{});
}

TEST(PeerHosts, F169_AnAddressIsInTheNetworksThatAreListed) {
  const PeerHosts peers("10.1.0.0/16, 192.0.2.7,10.9.8.128/25,fd00:1::/32");
  for (const char* in : {"10.1.0.1", "10.1.255.255", "192.0.2.7", "10.9.8.128", "10.9.8.255",
                         "fd00:1:ffff::1", "::ffff:10.1.2.3"}) {
    EXPECT_TRUE(peers.has(address(in))) << in;
  }
  for (const char* out : {"10.2.0.1", "11.1.0.1", "192.0.2.8", "10.9.8.127", "fd00:2::1",
                          "::ffff:10.2.0.1", "::1", "127.0.0.1"}) {
    EXPECT_FALSE(peers.has(address(out))) << out;
  }
}

TEST(PeerHosts, F169_WithoutAListEveryMachineMayConnect) {
  EXPECT_TRUE(PeerHosts("").has(address("192.0.2.1")));
  EXPECT_FALSE(PeerHosts("10.0.0.0/8").has(address("192.0.2.1")));
  EXPECT_TRUE(PeerHosts("0.0.0.0/0").has(address("192.0.2.1")));
  EXPECT_FALSE(PeerHosts("0.0.0.0/0").has(address("fd00::1")));
}

TEST(PeerHosts, F169_ANameStandsForItsAddresses) {
  const PeerHosts peers("localhost");
  EXPECT_TRUE(peers.has(address("127.0.0.1")) || peers.has(address("::1")));
  EXPECT_FALSE(peers.has(address("192.0.2.1")));
}

TEST(PeerHosts, F169_WhatIsNoMachineIsRefusedWithItsName) {
  for (const std::string entry : {"10.1.0.0/33", "10.1.0.0/x", "10.1.0.0/", "10.1.0.0/-1",
                                  "fd00::/129", "localhost/8", "no such host", "rank0.invalid"}) {
    const std::string what =
        testing::refusal_code(Code::kBadValue, [&] { const PeerHosts peers("10.0.0.1," + entry); });
    EXPECT_NE(what.find("TROUPE_PEERS"), std::string::npos) << what;
  }
  testing::refusal_code(Code::kBadValue, [&] { const PeerHosts peers(" , "); });
}

}  // namespace
}  // namespace troupe
