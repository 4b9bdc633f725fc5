#include "troupe/distributed/world/rendezvous.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>

#include "troupe/core/check.h"
#include "troupe/testing/torch/table_store.h"

namespace troupe {
namespace {

using testing::Table;
using testing::TableStore;
using namespace std::chrono_literals;

struct RendezvousTest : ::testing::Test {
  std::shared_ptr<Table> table = std::make_shared<Table>();
  RendezvousOptions options{
      .size = 3, .process = "", .place = "h:1", .timeout = 1s, .first_serves = false};

  // The list of processes that the rank gets, or why it gets none.
  std::future<std::string> come(int64_t rank, const std::string& process) const {
    return std::async(std::launch::async, [=, table = table, o = options] {
      RendezvousOptions own = o;
      own.rank = rank;
      own.process = process;
      TableStore store(table);
      try {
        const Rendezvous met = rendezvous(store, own);
        std::string out = met.name;
        for (const std::string& one : met.processes) out += one + ' ';
        return out;
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Code::kNoRendezvous);
        return std::string(e.what());
      }
    });
  }
};

TEST_F(RendezvousTest, AllGetTheListOfAll) {
  options.timeout = 20s;
  auto two = come(2, "c");
  auto zero = come(0, "a"), one = come(1, "b");
  EXPECT_EQ(zero.get(), "a/a b c ");
  EXPECT_EQ(one.get(), "a/a b c ");
  EXPECT_EQ(two.get(), "a/a b c ");
}

// torchrun starts its ranks again in the store that it has, where one of its machines came or went.
TEST_F(RendezvousTest, WhatAnEarlierRendezvousLeftIsNotTaken) {
  options.timeout = 20s;
  for (const std::string round : {"old", "new", "newest"}) {
    auto one = come(1, round + "1"), two = come(2, round + "2");
    std::this_thread::sleep_for(30ms);
    auto zero = come(0, round + "0");
    for (auto* rank : {&zero, &one, &two}) {
      EXPECT_EQ(rank->get(), round + "0/" + round + "0 " + round + "1 " + round + "2 ");
    }
  }
}

// Rank 2 was not of the run before, so its key there is free.
TEST_F(RendezvousTest, ARankOfALargerWorldDoesNotTakeAnEarlierList) {
  options.size = 2;
  options.timeout = 20s;
  auto zero = come(0, "old0"), one = come(1, "old1");
  EXPECT_EQ(zero.get(), "old0/old0 old1 ");
  EXPECT_EQ(one.get(), "old0/old0 old1 ");
  options.size = 3;
  auto two = come(2, "new2");
  while (!TableStore(table).peek("old0/here/2")) std::this_thread::sleep_for(1ms);
  zero = come(0, "new0"), one = come(1, "new1");
  for (auto* rank : {&zero, &one, &two}) EXPECT_EQ(rank->get(), "new0/new0 new1 new2 ");
}

TEST_F(RendezvousTest, AListOfAnotherSizeIsToldWithWhatToDo) {
  options.size = 2;
  auto zero = come(0, "a"), one = come(1, "b");
  EXPECT_EQ(zero.get() + one.get(), "a/a b a/a b ");
  options.size = 3;
  const std::string message =
      "h:1: E6002 rank 0, process a, meets 2 ranks, and rank 2 is one of 3: start all ranks with "
      "one WORLD_SIZE, and each run with its own MASTER_PORT";
  EXPECT_EQ(come(2, "c").get(), message + "; within 1 s (run.start_timeout) no other rank 0 came");
  options.first_serves = true;
  options.timeout = 20s;
  EXPECT_EQ(come(2, "c").get(), message);
}

TEST_F(RendezvousTest, F91_WhoDidNotComeIsNamedByAll) {
  auto zero = come(0, "a"), two = come(2, "c");
  const std::string message =
      "h:1: E6002 of 3 ranks, rank(s) 1 did not arrive within 1 s (run.start_timeout)";
  EXPECT_EQ(zero.get(), message);
  EXPECT_EQ(two.get(), message);
  table->texts.clear();
  EXPECT_NE(come(2, "c").get().find("rank(s) 0 did not arrive"), std::string::npos);
}

TEST_F(RendezvousTest, WhoIsThereAlreadyIsOfAnotherRunWhereRank0BringsTheStore) {
  options.first_serves = true;
  auto zero = come(0, "a"), one = come(1, "b");
  while (!TableStore(table).peek("a/here/1")) std::this_thread::sleep_for(1ms);
  EXPECT_NE(come(1, "other").get().find("E6002 rank 1 is there already, as process b"),
            std::string::npos);
  EXPECT_NE(one.get().find("rank(s) 2 did not arrive"), std::string::npos);
}

TEST_F(RendezvousTest, OthersAreToldThatRank0Leaves) {
  struct Asked {};
  options.timeout = 20s;
  auto one = come(1, "b");
  TableStore store(table);
  const RendezvousOptions own{.rank = 0,
                              .size = 3,
                              .process = "a",
                              .place = "h:1",
                              .check =
                                  [&] {
                                    if (store.peek("a/here/1")) throw Asked();
                                  },
                              .first_serves = false};
  EXPECT_THROW(rendezvous(store, own), Asked);
  EXPECT_NE(one.get().find("rank 0 left"), std::string::npos);
}

TEST_F(RendezvousTest, AStoreThatGoesAwayFailsTheRendezvous) {
  options.timeout = 20s;
  auto one = come(1, "b");
  TableStore(table).post("lead", "a");
  while (!TableStore(table).peek("a/here/1")) std::this_thread::sleep_for(1ms);
  {
    const std::lock_guard lock(table->mutex);
    table->gone = true;
  }
  EXPECT_NE(one.get().find("E6002 whoever served the store left"), std::string::npos);
}

}  // namespace
}  // namespace troupe
