#include "troupe/distributed/world/store_server.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "troupe/distributed/world/key_value_store.h"
#include "troupe/testing/files.h"

namespace troupe {
namespace {

// The addresses at which this machine listens at the port, as /proc/net has them.
std::vector<std::string> listening(int port) {
  std::array<char, 8> hex{};
  std::snprintf(hex.data(), hex.size(), ":%04X", static_cast<unsigned>(port) & 0xFFFFU);
  std::vector<std::string> out;
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream table(file);
    for (std::string number, local, remote, state, rest;
         table >> number >> local >> remote >> state; std::getline(table, rest)) {
      if (local.ends_with(hex.data()) && state == "0A")
        out.push_back(local.substr(0, local.find(':')));
    }
  }
  return out;
}

TEST(StoreServer, F169_IsAtTheLoopbackInterfaceAlone) {
  const StoreServer point;
  EXPECT_EQ(listening(point.port()), std::vector<std::string>{"0100007F"});
  wait_for_server("127.0.0.1", point.port(), std::chrono::milliseconds(2000), {});
  testing::refusal_code(Code::kNoRendezvous, [&] { const StoreServer taken(point.port()); });
}

TEST(StoreServer, F169_AnAddressIsTheSameToAllMachinesAndANameIsNot) {
  for (const char* host : {"127.0.0.1", "10.1.2.3", "::1", "fe80::1"})
    EXPECT_TRUE(is_address(host));
  for (const char* host : {"localhost", "gpu-3", "10.1", "", "1.2.3.4.example"}) {
    EXPECT_FALSE(is_address(host)) << host;
  }
}

TEST(StoreServer, F169_ANameThatThisMachineDoesNotHaveIsListenedForEverywhereAndSaid) {
  EXPECT_EQ(listening_for_machines("10.1.2.3").address, "10.1.2.3");
  for (const char* host : {"localhost", "rank0.invalid"}) {
    const Listening everywhere = listening_for_machines(host);
    EXPECT_EQ(everywhere.address, "");
    EXPECT_NE(everywhere.exposure.find(std::string("MASTER_ADDR: \"") + host), std::string::npos);
    EXPECT_NE(everywhere.exposure.find("listens at all interfaces"), std::string::npos);
  }
}

TEST(StoreServer, ListensAtNoAddressOfAnotherMachine) {
  EXPECT_EQ(listen_at("192.0.2.1", 0), -1);  // of no machine: RFC 5737
  const int socket = listen_at("localhost", 0);
  ASSERT_GE(socket, 0);
  EXPECT_GT(port_of(socket), 0);
  ::close(socket);
}

TEST(KeyValueStore, F169_WhatNoRankWroteIsAFaultOfThePeer) {
  EXPECT_EQ(number_of_peer("12", "a rank"), 12);
  for (const char* text : {"", "12x", "\x1b[31m", "99999999999999999999"}) {
    const std::string what =
        testing::refusal_code(Code::kRankLost, [&] { number_of_peer(text, "a rank"); });
    EXPECT_EQ(what.find('\x1b'), std::string::npos);
  }
  const std::vector<std::string> texts = {"a", "", "b:c"};
  EXPECT_EQ(parted(joined(texts)), texts);
  for (const char* text : {"x", "5:ab", "1:", ":"}) {
    testing::refusal_code(Code::kRankLost, [&] { parted(text); });
  }
}

}  // namespace
}  // namespace troupe
