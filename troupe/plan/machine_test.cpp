#include "troupe/plan/machine.h"

#include <gtest/gtest.h>

#include <fstream>

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe {
namespace {

Machine two_hosts() {
  return {.inside = {.bandwidth = 100, .latency = 0.01},
          .between = {.bandwidth = 10, .latency = 0.1}};
}

TEST(Machine, AnExchangeHasItsOwnRate) {
  Machine m{.inside = {.bandwidth = 100, .latency = 1}, .between = {}};
  m.exchanging = 2;
  EXPECT_DOUBLE_EQ(exchange_seconds(m, {.ranks = 4, .hosts = 1}, 50), 1 + 2 * 50 / 100.0);
  EXPECT_DOUBLE_EQ(gather_seconds(m, {.ranks = 2, .hosts = 1}, 100), 1 + 0.5);
}

TEST(Machine, ARingPassesEachPartOnce) {
  EXPECT_DOUBLE_EQ(gather_seconds(two_hosts(), {.ranks = 4}, 1000), 3 * 0.01 + 750 / 100.0);
  EXPECT_DOUBLE_EQ(gather_seconds(two_hosts(), {.ranks = 4, .hosts = 2}, 1000), 3 * 0.1 + 75);
  EXPECT_EQ(gather_seconds(two_hosts(), {.ranks = 1}, 1000), 0);
}

TEST(Machine, AnExchangeUsesBothLinksAtOnce) {
  EXPECT_DOUBLE_EQ(exchange_seconds(two_hosts(), {.ranks = 4}, 1000), 0.01 + 10);
  EXPECT_DOUBLE_EQ(exchange_seconds(two_hosts(), {.ranks = 4, .hosts = 2}, 1000), 0.1 + 200.0 / 3);
  EXPECT_DOUBLE_EQ(exchange_seconds(two_hosts(), {.ranks = 2, .hosts = 2}, 1000), 0.1 + 100);
  EXPECT_EQ(exchange_seconds(two_hosts(), {.ranks = 1, .hosts = 1}, 1000), 0);
}

TEST(Machine, LinksBetweenManyHostsAreSlower) {
  Machine m = two_hosts();
  m.derate = 0.06;
  const double ten = gather_seconds(m, {.ranks = 10, .hosts = 10}, 1000);
  EXPECT_NEAR(ten, 9 * 0.1 + 900 / (10 * 0.94), 1e-9);
}

TEST(Machine, F153_NumbersThatNoMachineHasAreRefused) {
  const testing::TemporaryFolder folder;
  const auto said = [&](const std::string& line) {
    std::ofstream(folder / "m.yaml") << "products: 1e12\nbandwidth: 1e11\n" << line << "\n";
    try {
      load_machine(folder / "m.yaml");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("sound");
  };
  EXPECT_EQ(said("ranks_per_host: 8"), "sound");
  for (const char* line : {"ranks_per_host: 9223372036854775807", "ranks_per_host: 65537",
                           "ranks_per_host: -9223372036854775807", "memory: 1e300",
                           "overhead: 1e31", "inside: {bandwidth: 1e308}", "inside: {latency: -1}",
                           "jitter: 1e200", "between: {latency: 1e99}", "imbalance: 1e308"}) {
    EXPECT_NE(said(line).find("E2005"), std::string::npos) << line << ": " << said(line);
  }
}

// Row 191: one bad driver or link makes all ranks slow.
TEST(Machine, WhatIsSlowIsNamedByRank) {
  Machine good;
  good.products = 100, good.experts = 80, good.attention = 60, good.bandwidth = 10;
  Machine bad = good, worn = good;
  bad.bandwidth = 5, worn.products = 85;
  EXPECT_TRUE(slow_parts({good, worn, good}, nullptr).empty());
  EXPECT_EQ(slow_parts({good, bad, good}, nullptr),
            std::vector<std::string>{
                "rank 1: bandwidth 5 is 50% of the 10 that half of the ranks reach"});
  EXPECT_TRUE(slow_parts({good, bad}, nullptr).empty());  // which of two is the slow one?
  EXPECT_EQ(slow_parts({bad}, &good),
            std::vector<std::string>{"rank 0: bandwidth 5 is 50% of the 10 that are expected"});
  Machine linked = good, slow_link = good;
  linked.inside.bandwidth = 40, slow_link.inside.bandwidth = 8;
  EXPECT_EQ(slow_parts({slow_link, slow_link}, &linked),
            std::vector<std::string>{
                "between ranks: inside.bandwidth 8 is 20% of the 40 that are expected"});
  EXPECT_TRUE(slow_parts({linked, linked}, &linked).empty());
}

// What a run chooses its layout by is what a reader of the file sees.
TEST(Machine, TheAssumedMachineIsThatOfTheFile) {
  const std::string here = __FILE__;
  const std::string root = here.substr(0, here.rfind("troupe/plan/"));
  EXPECT_EQ(flatten(load_machine(root + "machines/assumed-h100.yaml")),
            flatten(assumed_machine(/*gpu=*/true)));
  EXPECT_FALSE(assumed_machine(/*gpu=*/false).gpu);
}

TEST(Machine, AFileWithoutARateIsRefusedByName) {
  const testing::TemporaryFolder folder;
  const std::string path = folder / "m.yaml";
  std::ofstream(path) << "{name: x, bandwidth: 1e9, jitter: -1}\n";
  try {
    load_machine(path);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("products"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("jitter"), std::string::npos);
    EXPECT_EQ(std::string(e.what()).find("bandwidth must"), std::string::npos);
  }
  std::ofstream(path) << "{name: x, bandwidth: 1e9, products: 2e9}\n";
  EXPECT_EQ(load_machine(path).experts, 2e9);
}

TEST(Machine, F162_AFileOfOneRankIsRefusedWhereRanksTalk) {
  for (const int64_t hosts : {1, 2}) {
    const GroupTopology group{.ranks = 4, .hosts = hosts};
    Machine lone;
    lone.name = "lone";
    for (const auto of : {&gather_seconds, &exchange_seconds}) {
      try {
        of(lone, group, 100);
        FAIL();
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Code::kBadValue);
        EXPECT_NE(std::string(e.what()).find(".bandwidth, which several ranks"), std::string::npos);
      }
    }
    EXPECT_EQ(gather_seconds(lone, {}, 100), 0);
  }
}

}  // namespace
}  // namespace troupe
