#include "troupe/distributed/group/process_group.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <csignal>
#include <future>
#include <map>

#include "troupe/core/check.h"
#include "troupe/distributed/world/world.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using testing::in_ranks;
using testing::in_ranks_that_end;

TEST(Group, SumsGathersAndScattersOverFourRanks) {
  in_ranks(4, [](World& world) {
    const auto all = world.all();
    const auto r = static_cast<double>(world.rank());
    const at::Tensor one = at::full({3}, r), two = at::full({2}, 10 * r, at::kFloat);
    all->all_reduce({one}).wait();
    EXPECT_TRUE(at::equal(one, at::full({3}, 6.0, one.options())));
    // Several at once, of other sizes; and shards.
    const at::Tensor parts = at::arange(8, at::kFloat) * (r + 1), own = at::empty({2}, at::kFloat);
    Pending shards = all->reduce_scatter({own}, {parts});
    shards.wait();
    shards.wait();
    EXPECT_TRUE(at::equal(own, at::arange(8, at::kFloat).narrow(0, 2 * world.rank(), 2) * 10));
    const at::Tensor whole = at::empty({8}, at::kFloat);
    const at::Tensor place = whole.narrow(0, 2 * world.rank(), 2);
    place.copy_(two);
    all->all_gather({whole}, {place}).wait();
    for (int64_t i = 0; i < 8; ++i)
      EXPECT_EQ(whole[i].item<double>(), 10.0 * static_cast<double>(i / 2));
  });
}

TEST(Group, SendsAndReceivesBetweenTwoOfThree) {
  in_ranks(3, [](World& world) {
    const int64_t r = world.rank();
    for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf, at::kShort}) {
      if (r == 2) continue;
      const auto pair = world.group({0, 1}, "messages");
      const at::Tensor a = at::full({3, 2}, 7, type), b = at::full({5}, 9, type);
      if (r == 0) {
        Pending first = pair->send(a), second = pair->send(b);  // before anybody receives
        first.wait();
        second.wait();
        continue;
      }
      const at::Tensor x = at::empty({3, 2}, type), y = at::empty({5}, type);
      Pending first = pair->recv(x), second = pair->recv(y);
      second.wait();
      first.wait();
      EXPECT_TRUE(at::equal(x, a) && at::equal(y, b)) << type;
    }
    world.all()->barrier();
  });
}

TEST(Group, ExchangesUnevenAndEmptyRowsOfEveryType) {
  in_ranks(3, [](World& world) {
    const auto all = world.all();
    const int64_t r = world.rank();
    for (const auto type : {at::kFloat, at::kBFloat16, at::kDouble, at::kInt, at::kByte}) {
      // Rank r sends (r + to) % 3 rows that say 10 r + to.
      std::vector<int64_t> to_rows, from_rows;
      std::vector<double> said;
      for (int64_t other = 0; other < 3; ++other) {
        to_rows.push_back((r + other) % 3);
        from_rows.push_back((other + r) % 3);
      }
      const at::Tensor in = at::empty({3, 2}, type), out = at::empty({3, 2}, type);
      for (int64_t other = 0, row = 0; other < 3; ++other) {
        for (int64_t i = 0; i < to_rows[other]; ++i) in[row++].fill_(10 * r + other);
      }
      all->all_to_all(out, in, from_rows, to_rows).wait();
      for (int64_t other = 0, row = 0; other < 3; ++other) {
        for (int64_t i = 0; i < from_rows[other]; ++i) {
          EXPECT_EQ(out[row++][1].to(at::kDouble).item<double>(), 10.0 * other + r) << type;
        }
      }
    }
    const at::Tensor none = at::empty({0, 4});
    all->all_to_all(none, none, {0, 0, 0}, {0, 0, 0}).wait();
  });
}

TEST(Group, SubgroupsTalkApart) {
  in_ranks(4, [](World& world) {
    const int64_t r = world.rank();
    const auto pair = world.group({r % 2, r % 2 + 2});
    EXPECT_EQ(pair.get(), world.group({r % 2, r % 2 + 2}).get());
    EXPECT_EQ(pair->rank(), r / 2);
    const at::Tensor sum = pair->all_reduced(at::full({1}, static_cast<double>(r)));
    EXPECT_EQ(sum.item<double>(), 2.0 * static_cast<double>(r % 2) + 2);
    at::Tensor x = at::full({2}, static_cast<double>(r));
    pair->broadcast(x, 1).wait();
    EXPECT_EQ(x[1].item<double>(), static_cast<double>(r % 2 + 2));
    EXPECT_EQ(world.group({r})->size(), 1);
  });
}

TEST(Group, WhatOneChannelDoesPassesAnother) {
  in_ranks(2, [](World& world) {
    const auto first = world.all(), second = world.group({0, 1}, "second");
    EXPECT_NE(first.get(), second.get());
    EXPECT_EQ(second.get(), world.group({0, 1}, "second").get());
    const double r = static_cast<double>(world.rank());
    const at::Tensor sum = at::full({1}, r + 1);
    Pending pending;
    if (r == 0) pending = first->all_reduce({sum});
    EXPECT_EQ(second->all_reduced(at::full({1}, r)).item<double>(), 1);  // while rank 0's sum waits
    if (r == 1) pending = first->all_reduce({sum});
    pending.wait();
    EXPECT_EQ(sum.item<double>(), 3);
  });
}

TEST(Group, OfOneRankCopies) {
  ProcessGroup alone;
  const at::Tensor in = at::arange(4, at::kFloat), out = at::empty({4}, at::kFloat);
  alone.all_reduce({in}).wait();
  alone.all_gather({out}, {in}).wait();
  EXPECT_TRUE(at::equal(out, in));
  const at::Tensor rows = at::empty({2, 2}, at::kFloat);
  alone.all_to_all(rows, in.view({2, 2}), {2}, {2}).wait();
  EXPECT_TRUE(at::equal(rows, in.view({2, 2})));
  EXPECT_EQ(alone.description(), "rank 0");
}

TEST(Group, RefusesSizesThatDoNotAgreeBeforeAnythingIsSent) {
  ProcessGroup alone;
  EXPECT_THROW(alone.all_gather({at::empty({3})}, {at::empty({2})}), Error);
  EXPECT_THROW(alone.all_to_all(at::empty({2, 1}), at::empty({2, 1}), {1}, {2}), Error);
}

TEST(Group, F84_AKilledRankIsAnErrorOnTheOthersThatNamesTheOperation) {
  in_ranks_that_end({1, -SIGKILL, 1}, [](World& world) {
    const auto all = world.all();
    all->barrier();
    if (world.rank() == 1) std::raise(SIGKILL);
    try {
      all->all_reduce({at::full({1}, 1.0)}).wait();
      return;  // Then it ends with 0, which is not what is expected.
    } catch (const Error& e) {
      const std::string text = e.what();
      const bool reported = e.code() == Code::kRankLost &&
                            text.find("all_reduce of ranks 0, 1, 2") != std::string::npos;
      std::_Exit(reported ? 1 : 2);
    }
  });
}

TEST(Group, F84_ARankThatEndedBeforeAGroupIsMadeIsLost) {
  const auto body = [](World& world) {
    world.all_gather_texts("all are here", "");
    if (world.rank() == 2) std::raise(SIGKILL);
    try {
      world.group({0, 1, 2}, "of its own");
      ADD_FAILURE() << "was made";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kRankLost) << e.what();
    }
    std::_Exit(::testing::Test::HasFailure() ? 1 : 0);  // no text of rank 2 ends the test
  };
  in_ranks_that_end({0, 0, -SIGKILL}, body, /*seconds=*/8);
}

TEST(World, TextsOfAllRanksInRankOrderAndOfEachRound) {
  in_ranks(3, [](World& world) {
    for (int round = 0; round < 3; ++round) {
      const auto texts = world.all_gather_texts("t", std::to_string(10 * round + world.rank()));
      for (int r = 0; r < 3; ++r) EXPECT_EQ(texts[r], std::to_string(10 * round + r));
    }
    EXPECT_FALSE(world.store().peek("nobody").has_value());
    EXPECT_THROW(world.store().read("nobody", std::chrono::milliseconds(50)), Error);
  });
}

TEST(World, F91_RanksThatDoNotComeAreNamed) {
  try {
    World(LauncherEnvironment{.rank = 0, .size = 3, .port = 29876}, c10::kCPU,
          {.start_timeout = std::chrono::milliseconds(600)});
    FAIL() << "met nobody and went on";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kNoRendezvous);
    EXPECT_NE(std::string(e.what()).find("rank(s) 1, 2 did not arrive"), std::string::npos)
        << e.what();
  }
}

// Why a rank does not get into its world.
std::string rendezvous_error(const LauncherEnvironment& place, const WorldOptions& options) {
  try {
    World world(place, c10::kCPU, options);
    return "met";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kNoRendezvous);
    return e.what();
  }
}

TEST(World, F91_WhoDoesNotReachRank0IsToldWhyInTime) {
  const auto begin = std::chrono::steady_clock::now();
  const WorldOptions options{.start_timeout = std::chrono::milliseconds(400)};
  const LauncherEnvironment nobody{.rank = 1, .size = 2, .port = 29875};
  EXPECT_NE(rendezvous_error(nobody, options).find("Connection refused"), std::string::npos);
  LauncherEnvironment unknown = nobody;
  unknown.host = "no such host";
  EXPECT_NE(rendezvous_error(unknown, options).find("not known"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - begin,
            std::chrono::seconds(60));  // far below the default
}

TEST(World, AStopIsSeenDuringTheRendezvous) {
  struct Asked {};
  const WorldOptions options{.start_timeout = std::chrono::minutes(5),
                             .check = [count = 0]() mutable {
                               if (++count == 5) throw Asked();
                             }};
  EXPECT_THROW(World(LauncherEnvironment{.rank = 0, .size = 2, .port = 29874}, c10::kCPU, options),
               Asked);
  EXPECT_THROW(World(LauncherEnvironment{.rank = 1, .size = 2, .port = 29873}, c10::kCPU, options),
               Asked);
}

TEST(World, TwoJobsAtOnePortDoNotMeet) {
  const auto rendezvous = [&](int64_t rank, const std::string& job,
                              std::chrono::milliseconds timeout) {
    return std::async(std::launch::async, [=] {
      return rendezvous_error({.rank = rank, .size = 3, .port = 29872, .job = job},
                              {.start_timeout = timeout});
    });
  };
  // Job b finds job a's store, which is there for longer than b waits.
  auto zero = rendezvous(0, "a.", std::chrono::seconds(4)),
       one = rendezvous(1, "a.", std::chrono::seconds(4));
  auto other = rendezvous(2, "b.", std::chrono::seconds(2));
  EXPECT_NE(other.get().find("rank(s) 0 did not arrive"), std::string::npos);
  EXPECT_NE(one.get().find("rank(s) 2 did not arrive"), std::string::npos);
  EXPECT_NE(zero.get().find("rank(s) 2 did not arrive"), std::string::npos);
}

std::optional<LauncherEnvironment> place_of(const std::map<std::string, std::string>& variables) {
  return launcher_environment_from([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return {};
    return found->second;
  });
}

TEST(LauncherEnvironment, IsReadFromEveryLauncher) {
  EXPECT_FALSE(place_of({}).has_value());
  const auto torchrun = place_of({{"TORCHELASTIC_RUN_ID", "x"},
                                  {"RANK", "3"},
                                  {"WORLD_SIZE", "8"},
                                  {"LOCAL_RANK", "1"},
                                  {"LOCAL_WORLD_SIZE", "2"},
                                  {"MASTER_ADDR", "h"},
                                  {"MASTER_PORT", "1234"},
                                  {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                  {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(torchrun->rank, 3);
  EXPECT_EQ(torchrun->local_size, 2);
  EXPECT_EQ(torchrun->attempt, 2);
  EXPECT_TRUE(torchrun->launcher_has_store);
  EXPECT_EQ(torchrun->source, "torchrun");
  EXPECT_EQ(torchrun->job, "x.");
  const auto with_token = place_of(
      {{"TORCHELASTIC_RUN_ID", "x"}, {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"TROUPE_TOKEN", "a1b2"}});
  EXPECT_EQ(with_token->job, "x.a1b2.");
  const auto launched = place_of({{"TROUPE_LAUNCH", "1"},
                                  {"TORCHELASTIC_RUN_ID", "around"},
                                  {"RANK", "1"},
                                  {"WORLD_SIZE", "2"}});
  EXPECT_EQ(launched->source, "troupe launch");
  EXPECT_EQ(launched->rank, 1);
  EXPECT_EQ(launched->job, "");  // its port is its own
  const auto slurm = place_of({{"SLURM_STEP_ID", "0"},
                               {"SLURM_JOB_ID", "77"},
                               {"SLURM_PROCID", "1"},
                               {"SLURM_NTASKS", "4"},
                               {"SLURM_LOCALID", "1"},
                               {"SLURM_STEP_NODELIST", "gpu[3-5,7]"}});
  EXPECT_EQ(slurm->host, "gpu3");
  EXPECT_EQ(slurm->size, 4);
  EXPECT_EQ(slurm->job, "77.0.");
  // Nodes of 2, 2, 8, 8, 8 and 1 ranks.
  const std::array<int64_t, 6> here = {2, 2, 8, 8, 8, 1};
  for (size_t node = 0; node < here.size(); ++node) {
    const auto one = place_of({{"SLURM_STEP_ID", "0"},
                               {"SLURM_PROCID", "0"},
                               {"SLURM_NTASKS", "29"},
                               {"SLURM_NODEID", std::to_string(node)},
                               {"SLURM_STEP_TASKS_PER_NODE", "2(x2),8(x3),1"}});
    EXPECT_EQ(one->local_size, here[node]);
  }
  const auto mpi = place_of({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  EXPECT_EQ(mpi->source, "Open MPI");
}

TEST(LauncherEnvironment, NamesTheVariableThatIsMissingOrBad) {
  const auto message = [](const std::map<std::string, std::string>& variables) -> std::string {
    try {
      place_of(variables);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message({{"RANK", "1"}}).find("WORLD_SIZE"), std::string::npos);
  EXPECT_NE(message({{"RANK", "one"}, {"WORLD_SIZE", "2"}}).find("\"one\""), std::string::npos);
  EXPECT_NE(message({{"RANK", "2"}, {"WORLD_SIZE", "2"}}).find("rank 2 in a world of 2"),
            std::string::npos);
  // One of several processes that does not know which one it is would train alone.
  EXPECT_EQ(message({{"WORLD_SIZE", "2"}}),
            "RANK: E2005 is not set, although WORLD_SIZE=2 is: each process of a run of several "
            "needs RANK (from 0) and WORLD_SIZE. Set both, start them with troupe launch -n N, or "
            "unset WORLD_SIZE to run one process");
  EXPECT_NE(message({{"LOCAL_RANK", "1"}}).find("although LOCAL_RANK=1 is"), std::string::npos);
  EXPECT_NE(message({{"LOCAL_WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}})
                .find("although LOCAL_WORLD_SIZE=4 is"),
            std::string::npos);
  EXPECT_FALSE(place_of({{"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}}));
}

}  // namespace
}  // namespace troupe
