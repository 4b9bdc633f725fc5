#include "troupe/distributed/world/watch.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/testing/torch/table_store.h"

namespace troupe {
namespace {

using std::chrono::milliseconds;
using testing::Table;
using testing::TableStore;
using namespace std::chrono_literals;

constexpr milliseconds kBeat{200};

::testing::AssertionResult says(const std::string& text, const std::string& part) {
  const bool found = text.find(part) != std::string::npos;
  return (found ? ::testing::AssertionSuccess() : ::testing::AssertionFailure())
         << '"' << text << "\" and \"" << part << '"';
}

// Ranks of several machines, as far as the system can tell.
struct Ranks {
  std::shared_ptr<Table> table = std::make_shared<Table>();
  std::vector<Process> processes;
  std::vector<std::shared_ptr<Pulse>> pulses;
  std::vector<std::unique_ptr<Watch>> watches;

  explicit Ranks(int64_t size, std::optional<Process> last = {}) {
    for (int64_t r = 0; r < size; ++r) processes.push_back({"machine" + std::to_string(r), 1});
    if (last) processes.back() = *last;
    for (int64_t r = 0; r < size; ++r) {
      pulses.push_back(std::make_shared<Pulse>());
      watches.push_back(std::make_unique<Watch>(Watch::Self{.rank = r,
                                                            .size = size,
                                                            .pulse = pulses.back(),
                                                            .processes = processes,
                                                            .first_serves = true,
                                                            .beat = kBeat},
                                                std::make_unique<TableStore>(table)));
    }
    while (posted() < size) std::this_thread::sleep_for(1ms);
  }
  int64_t posted() const {
    const std::lock_guard lock(table->mutex);
    return static_cast<int64_t>(table->texts.size());  // a first beat of each
  }
  void status(size_t rank, int64_t done, Phase phase) {
    pulses[rank]->done(done);
    pulses[rank]->begin(phase, 1, 4);
    std::this_thread::sleep_for(2 * kBeat);  // the other rank learns it
  }
};

TEST(Watch, F84_ARankWithoutAHeartbeatIsNamedWithItsStepAndPhase) {
  Ranks ranks(3);
  const Waiting at_the_others(ranks.pulses[2].get());
  ranks.status(1, 7, Phase::kForward);
  ranks.watches[1].reset();  // its beats stay away
  const Loss loss = ranks.watches[0]->find_lost("sum of ranks 0 to 2: E6001 closed");
  EXPECT_EQ(loss.rank, 1);
  EXPECT_EQ(loss.code, Code::kRankLost);
  EXPECT_EQ(loss.status.step(), 8);
  EXPECT_TRUE(says(loss.message,
                   "rank 0, start: E6001 rank 1 of 3 has no heartbeat; it "
                   "was in step 8, forward 2/4, last heartbeat "));
  EXPECT_TRUE(says(loss.message, "Noticed in sum of ranks 0 to 2: closed"));
  EXPECT_FALSE(says(loss.message, "rank 2"));
}

TEST(Watch, F84_AProcessOfThisMachineThatIsNoMoreIsKnownAtOnce) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  Process gone = this_process();
  gone.id = child;
  const Ranks ranks(2, gone);
  EXPECT_TRUE(ranks.watches[0]->has_ended(1));
  while (!ranks.watches[0]->peer_ended()) std::this_thread::sleep_for(1ms);  // at a beat
  EXPECT_FALSE(ranks.watches[0]->has_ended(0));
  EXPECT_TRUE(says(ranks.watches[0]->find_lost("x").message, "exited without a message"));
}

TEST(Watch, F85_AProcessThatIsStoppedIsNamedAsSuch) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  ASSERT_EQ(::waitpid(child, nullptr, WUNTRACED), child);
  Process stopped = this_process();
  stopped.id = child;
  const Ranks ranks(2, stopped);
  const Loss loss = ranks.watches[0]->find_lost("x");
  EXPECT_EQ(loss.code, Code::kRankHung);
  EXPECT_EQ(loss.cause, Code::kRankHung);
  EXPECT_TRUE(says(loss.message, "rank 1 of 2 is stopped (SIGSTOP); it is in start since"));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST(Watch, F85_ARankThatNeitherMovesNorWaitsIsTheOneThatHangs) {
  Ranks ranks(3);
  const Waiting at_the_others(ranks.pulses[2].get());
  ranks.status(1, 3, Phase::kOptim);
  const Loss loss = ranks.watches[0]->find_lost("x");
  EXPECT_EQ(loss.rank, 1);
  EXPECT_EQ(loss.code, Code::kRankHung);
  EXPECT_TRUE(
      says(loss.message, "E6003 rank 1 of 3 makes no progress; it is in step 4, optim 2/4"));
}

TEST(Watch, F87_WhatARankSaysOfItsEndIsTheCause) {
  Ranks ranks(2);
  ranks.watches[1]->last_words("step 3: E5001 non-finite loss", Code::kNonFinite);
  const Loss loss = ranks.watches[0]->find_lost("x");
  EXPECT_EQ(loss.cause, Code::kNonFinite);
  EXPECT_EQ(loss.code, Code::kRankLost);
  EXPECT_TRUE(says(loss.message, "rank 1 of 2 failed: step 3: E5001"));
}

TEST(Watch, F176_APeerThatEndsIsSeenByTheOthersAtABeat) {
  Ranks ranks(3);
  std::this_thread::sleep_for(2 * kBeat);
  for (const auto& watch : ranks.watches) EXPECT_FALSE(watch->peer_ended());
  ranks.watches[1]->last_words("of its own", Code::kNonFinite);
  for (const size_t r : {size_t{0}, size_t{2}}) {
    while (!ranks.watches[r]->peer_ended()) std::this_thread::sleep_for(1ms);
  }
}

TEST(Watch, F176_APeerThatEndedWithinAStepIsLost) {
  const auto all = std::make_shared<Pulses>(4);
  const Watch watch({.rank = 0,
                     .size = 4,
                     .pulse = std::shared_ptr<Pulse>(all, &all->of(0)),
                     .all = all,
                     .beat = kBeat},
                    std::make_unique<TableStore>(std::make_shared<Table>()));
  all->of(1).begin(Phase::kExit);
  all->of(1).set_ended(/*by_itself=*/true);
  all->of(3).begin(Phase::kReduce);
  all->of(3).set_ended(/*by_itself=*/false);
  all->of(2).begin(Phase::kForward);
  EXPECT_FALSE(watch.peer_lost());  // one in good order, one that lost another, one not at all
  all->of(2).set_ended(/*by_itself=*/true);
  EXPECT_TRUE(watch.peer_lost());
}

TEST(Watch, OneOfThoseThatAreLeftTellsAndTheOthersAreBrief) {
  Ranks ranks(3);
  ranks.watches[1]->last_words("of its own", Code::kNonFinite);
  const Loss first = ranks.watches[2]->find_lost("x");
  const Loss second = ranks.watches[0]->find_lost("x");
  EXPECT_EQ(first.brief, "rank 2, start: E6001 caused by rank 1, reported by rank 0");
  EXPECT_TRUE(says(first.message, "of its own"));  // for exit.json
  EXPECT_EQ(second.brief, second.message);
  EXPECT_EQ(second.rank, 1);
}

TEST(Watch, OneThatLooksTellsTheOthersWhoseHeartbeatsGoOn) {
  constexpr size_t kRanks = 8;
  Ranks ranks(kRanks);
  ranks.watches[3].reset();
  std::vector<std::unique_ptr<Waiting>> waits;
  for (const auto& pulse : ranks.pulses) waits.push_back(std::make_unique<Waiting>(pulse.get()));
  const auto locked = [&](auto&& f) {
    const std::lock_guard lock(ranks.table->mutex);
    return f(*ranks.table);
  };
  const auto requests = [&] { return locked([](const Table& t) { return t.requests; }); };
  const auto beats_of = [&](size_t r) {
    return locked(
        [&](const Table& t) { return std::stoll(t.texts.at(beat_key(static_cast<int64_t>(r)))); });
  };
  const int64_t before = requests();
  const long long beats = beats_of(5);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::future<Loss>> losses;
  for (size_t r = 0; r < kRanks; ++r) {
    if (r == 3) continue;
    losses.push_back(
        std::async(std::launch::async, [&ranks, r] { return ranks.watches[r]->find_lost("x"); }));
  }
  int64_t told = 0;
  for (std::future<Loss>& of : losses) {
    const Loss loss = of.get();
    EXPECT_EQ(loss.rank, 3);
    EXPECT_TRUE(says(loss.message, "rank 3 of 8 has no heartbeat"));
    told += loss.brief == loss.message ? 1 : 0;
  }
  EXPECT_EQ(told, 1);
  const int64_t asked = requests() - before;
  EXPECT_GE(beats_of(5), beats + 2);  // three heartbeats passed at least
  const auto rounds = (std::chrono::steady_clock::now() - begin) / kBeat + 2;
  EXPECT_LE(asked, 2 * rounds * static_cast<int64_t>(kRanks) + int64_t{kRanks} + 16 * 4);
}

TEST(Watch, F86_AStoreThatIsGoneWasRank0s) {
  Ranks ranks(3);
  std::this_thread::sleep_for(2 * kBeat);
  {
    const std::lock_guard lock(ranks.table->mutex);
    ranks.table->gone = true;
  }
  const Loss loss = ranks.watches[1]->find_lost("x");
  EXPECT_EQ(loss.rank, 0);
  EXPECT_TRUE(says(loss.brief, "rank 0 of 3 exited without a message"));
}

TEST(Watch, NobodyIsAccusedWhereAllAreThere) {
  const Ranks ranks(2);
  const Waiting waiting(ranks.pulses[1].get());
  const Loss loss = ranks.watches[0]->find_lost("x");
  EXPECT_EQ(loss.rank, -1);
  EXPECT_TRUE(says(loss.message, "a connection between two of them broke"));
}

TEST(Watch, AProcessIsWrittenAndReadBack) {
  const Process here = this_process();
  const Process read = process_of(to_text(here));
  EXPECT_EQ(read.id, ::getpid());
  EXPECT_EQ(read.machine, here.machine);
  EXPECT_GT(here.machine.size(), 30U);  // the machine's boot and its name space
}

}  // namespace
}  // namespace troupe
