#include "troupe/distributed/world/sentinel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace troupe {
namespace {

using namespace std::chrono_literals;

// A rank of which all is made up.
struct Rank {
  Pulse pulse;
  std::atomic<int64_t> looks = 0, ends = 0;
  std::atomic<bool> peer_ended = true, peer_lost = false, writes = false;

  const std::chrono::milliseconds patience;

  explicit Rank(Phase phase, std::chrono::milliseconds most = 20ms) : patience(most) {
    pulse.begin(phase);
  }
  Sentinel::Self self() {
    return {.pulse = pulse,
            .peer_ended =
                [this] {
                  ++looks;
                  return peer_ended.load();
                },
            .peer_lost = [this] { return peer_lost.load(); },
            .writes = [this] { return writes.load(); },
            .end = [this](std::chrono::seconds) { ++ends; },
            .patience = patience,
            .patience_if_lost = 20ms};
  }
  // More than it takes to end.
  void wait_for_looks() const {
    const int64_t after = looks + 20;
    while (looks < after) std::this_thread::sleep_for(1ms);
  }
  void wait_for_end() const {
    while (ends == 0) std::this_thread::sleep_for(1ms);
  }
};

TEST(SentinelTest, F176_ARankThatDoesNotMoveWithALostPeerIsEnded) {
  for (const Phase phase :
       {Phase::kBatch, Phase::kForward, Phase::kDispatch, Phase::kTensor, Phase::kRecv,
        Phase::kLate, Phase::kOptim, Phase::kEval, Phase::kSave}) {
    Rank rank(phase);
    {
      const Sentinel sentinel(rank.self());
      rank.wait_for_end();
    }
    EXPECT_EQ(rank.ends, 1) << to_text(phase);
  }
}

TEST(SentinelTest, F176_ASlowRankWhosePeersAreAliveIsNot) {
  Rank rank(Phase::kForward);
  rank.peer_ended = false;
  const Sentinel sentinel(rank.self());
  rank.wait_for_looks();
  EXPECT_EQ(rank.ends, 0);
}

TEST(SentinelTest, F176_PeersMayLeaveBeforeTheFirstStepAndAfterTheLast) {
  for (const Phase phase : {Phase::kStart, Phase::kLoad, Phase::kLog, Phase::kExit}) {
    Rank rank(phase);
    const Sentinel sentinel(rank.self());
    rank.wait_for_looks();
    EXPECT_EQ(rank.ends, 0) << to_text(phase);
  }
}

// One hour's patience with a peer that may have ended in good order.
TEST(SentinelTest, F176_APeerThatEndedWithinAStepIsWaitedForOnlyBriefly) {
  Rank rank(Phase::kForward, std::chrono::hours(1));
  const Sentinel sentinel(rank.self());
  rank.wait_for_looks();
  EXPECT_EQ(rank.ends, 0);
  rank.peer_lost = true;
  rank.wait_for_end();
}

TEST(SentinelTest, F176_ACheckpointIsWrittenBefore) {
  Rank rank(Phase::kForward);
  rank.writes = true;
  const Sentinel sentinel(rank.self());
  rank.wait_for_looks();
  EXPECT_EQ(rank.ends, 0);
  rank.writes = false;
  rank.wait_for_end();
}

}  // namespace
}  // namespace troupe
