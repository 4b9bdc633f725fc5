#include "troupe/distributed/world/tcp_key_value_store.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/distributed/world/store_server.h"
#include "troupe/testing/files.h"

namespace troupe {
namespace {

using std::chrono::milliseconds;

c10::intrusive_ptr<c10d::TCPStore> client_of(const StoreServer& server) {
  c10d::TCPStoreOptions how;
  how.port = static_cast<uint16_t>(server.port());
  how.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", how);
}

TEST(TcpKeyValueStore, ALookFindsWhatIsThereAndLeavesNoKey) {
  const StoreServer server;
  const auto client = client_of(server);
  TcpKeyValueStore store(client);
  store.post("empty", "");
  store.post("long", std::string(size_t{1} << 20, 'x'));
  store.post("zeros", std::string(2, '\0'));
  const int64_t keys = client->getNumKeys();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(store.peek("missing"), std::nullopt);
  EXPECT_EQ(store.peek_all({"missing"}), std::nullopt);
  EXPECT_EQ(store.peek_all({"empty", "missing"}), std::nullopt);
  EXPECT_FALSE(client->check({"missing"}));
  EXPECT_EQ(store.peek("empty"), "");
  EXPECT_EQ(store.peek("long"), std::string(size_t{1} << 20, 'x'));
  EXPECT_EQ(store.peek("zeros"), std::string(2, '\0'));
  EXPECT_EQ(store.peek("long")->size(), size_t{1} << 20);  // a look changes nothing
  const std::vector<std::string> one = {""}, two = {"", std::string(2, '\0')};
  EXPECT_EQ(store.peek_all({"empty"}), one);
  EXPECT_EQ(store.peek_all({"empty", "zeros"}), two);
  EXPECT_EQ(client->getNumKeys(), keys);
}

TEST(TcpKeyValueStore, AKeyIsClaimedOnceAlsoAfterALook) {
  const StoreServer server;
  TcpKeyValueStore first(client_of(server)), second(client_of(server));
  EXPECT_EQ(first.peek("end"), std::nullopt);
  EXPECT_EQ(first.claim("end", "1"), "1");
  EXPECT_EQ(second.claim("end", "2"), "1");
  EXPECT_EQ(second.peek("end"), "1");
}

TEST(TcpKeyValueStore, AReadWaitsForTheKeyAndForNoLonger) {
  const StoreServer server;
  TcpKeyValueStore reader(client_of(server)), writer(client_of(server));
  const std::jthread later([&] {
    std::this_thread::sleep_for(milliseconds(50));
    writer.post("late", "here");
  });
  EXPECT_EQ(reader.read("late", milliseconds(20'000)), "here");
  testing::refusal_code(Code::kRankLost, [&] { reader.read("never", milliseconds(50)); });
}

TEST(TcpKeyValueStore, AServerThatIsGoneIsALostRank) {
  auto server = std::make_unique<StoreServer>();
  TcpKeyValueStore store(client_of(*server));
  store.post("key", "text");
  EXPECT_EQ(store.peek("key"), "text");
  server.reset();
  const std::string said = testing::refusal_code(Code::kRankLost, [&] { store.peek("key"); });
  EXPECT_NE(said.find("the store's \"key\""), std::string::npos) << said;
}

}  // namespace
}  // namespace troupe
