#include "troupe/kernels/peer_flags/peer_flags.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/testing/matrix.h"

namespace troupe {
namespace {

using testing::Backend;
using testing::Buffer;
using Clock = std::chrono::steady_clock;

constexpr int64_t kSecond = 1'000'000'000;

struct Problem {
  explicit Problem(std::vector<uint32_t> values)
      : flags(values.size()), stop(1), missing(1), count(static_cast<int64_t>(values.size())) {
    for (size_t i = 0; i < values.size(); ++i) flags[i] = values[i];
    stop[0] = 0;
    missing[0] = -1;
  }
  SignalFlags signal(uint32_t value) {
    SignalFlags a{.count = count, .value = value};
    for (size_t i = 0; i < flags.size(); ++i) a.flags[i] = &flags[i];
    return a;
  }
  AwaitFlags await(uint32_t want, int64_t limit_ns) {
    AwaitFlags a{.count = count,
                 .want = want,
                 .limit_ns = limit_ns,
                 .stop = stop.data(),
                 .missing = missing.data()};
    for (size_t i = 0; i < flags.size(); ++i) a.flags[i] = &flags[i];
    return a;
  }
  Buffer<uint32_t> flags, stop;
  Buffer<int32_t> missing;
  int64_t count;
};

class PeerFlagsTest : public ::testing::TestWithParam<Backend> {
 protected:
  void SetUp() override {
    if (!testing::available(GetParam())) GTEST_SKIP() << "no GPU here";
  }
  static void signal(Problem& p, uint32_t value) {
    testing::run(GetParam(), p.signal(value), signal_flags_cpu,
                 TROUPE_CUDA_PATH(signal_flags_cuda));
  }
  static int await(Problem& p, uint32_t want, int64_t limit_ns) {
    testing::run(GetParam(), p.await(want, limit_ns), await_flags_cpu,
                 TROUPE_CUDA_PATH(await_flags_cuda));
    return p.missing[0];
  }
};

TEST_P(PeerFlagsTest, SignalWritesEveryFlag) {
  for (const size_t n : {0, 1, 7, 64}) {
    Problem got(std::vector<uint32_t>(n, 3)), want(std::vector<uint32_t>(n, 3));
    signal(got, 41);
    signal_flags_ref(want.signal(41));
    for (size_t i = 0; i < n; ++i) EXPECT_EQ(got.flags[i], want.flags[i]) << i;
  }
}

TEST_P(PeerFlagsTest, AwaitReturnsAtOnceWhereAllHaveComeAsTheReference) {
  const uint32_t end = 0xffffffffu;
  for (const auto& values : {std::vector<uint32_t>{}, {5}, {5, 6, 900}, {end, 0, 1}}) {
    const uint32_t want = values.size() == 3 && values[0] == end ? end : 5;
    Problem got(values), ref(values);
    const auto begin = Clock::now();
    EXPECT_EQ(await(got, want, 3600 * kSecond), -1);
    EXPECT_LT(Clock::now() - begin, std::chrono::minutes(2));
    await_flags_ref(ref.await(want, 0));
    EXPECT_EQ(ref.missing[0], -1);
  }
}

TEST_P(PeerFlagsTest, F_AWaitEndsAtItsLimitAndNamesTheLowestThatIsMissing) {
  Problem p({9, 8, 9, 7}), ref({9, 8, 9, 7});
  EXPECT_EQ(await(p, 9, kSecond / 50), 1);
  await_flags_ref(ref.await(9, 0));
  EXPECT_EQ(ref.missing[0], 1);
  Problem wrapped({0xfffffff0u});  // long before 3
  EXPECT_EQ(await(wrapped, 3, 0), 0);
}

TEST_P(PeerFlagsTest, F_StopEndsAWaitLongBeforeItsLimit) {
  Problem p({9, 8});
  p.stop[0] = 1;
  const auto begin = Clock::now();
  EXPECT_EQ(await(p, 9, 3600 * kSecond), 1);
  EXPECT_LT(Clock::now() - begin, std::chrono::minutes(2));
}

// Pairs of words: the flag, and what it says has come.
TEST_P(PeerFlagsTest, F_OtherMarksAreNamedWhereAllHaveCome) {
  Problem p({0, 0, 0, 0, 0, 0});
  const auto pairs = [&p](auto args, uint32_t mark) {
    args.count = 3;
    args.marked = true;
    args.mark = mark;
    for (size_t i = 0; i < 3; ++i) args.flags[i] = &p.flags[2 * i];
    return args;
  };
  const auto send = [&](const SignalFlags& args) {
    testing::run(GetParam(), args, signal_flags_cpu, TROUPE_CUDA_PATH(signal_flags_cuda));
  };
  const auto missed = [&](uint32_t want, uint32_t mark) {
    int32_t out = -1;
    for (const bool reference : {false, true}) {
      p.missing[0] = -1;
      const AwaitFlags args = pairs(p.await(want, 0), mark);
      if (reference) {
        await_flags_ref(args);
        EXPECT_EQ(p.missing[0], out);
      } else {
        testing::run(GetParam(), args, await_flags_cpu, TROUPE_CUDA_PATH(await_flags_cuda));
        out = p.missing[0];
      }
    }
    return out;
  };
  send(pairs(p.signal(7), 90));
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(p.flags[i], i % 2 == 0 ? 7u : 90u) << i;
  EXPECT_EQ(missed(7, 90), -1);
  EXPECT_EQ(missed(7, 91), kMostPeers);
  p.flags[3] = 91;
  p.flags[5] = 91;
  EXPECT_EQ(missed(7, 90), kMostPeers + 1);
  p.flags[4] = 6;
  EXPECT_EQ(missed(7, 90), 2);  // that it has not come counts first
  send(p.signal(8));            // without marks each word is a flag of its own
  for (size_t i = 0; i < 6; ++i) EXPECT_EQ(p.flags[i], 8u) << i;
}

// The same call once more is about the next number, as a graph's is that is replayed.
TEST_P(PeerFlagsTest, NumbersAreCountedWhereTheFlagsAre) {
  for (const bool reference : {false, true}) {
    Problem p({0xfffffffeu, 0xffffffffu, 0xfffffffeu});  // [2]: the number
    AwaitFlags wait = p.await(99, 0);
    SignalFlags told = p.signal(99);
    wait.count = told.count = 2;
    wait.want_at = told.value_at = &p.flags[2];
    wait.advance = &p.flags[2];
    const auto both = [&] {
      if (reference) {
        await_flags_ref(wait);
        return signal_flags_ref(told);
      }
      testing::run(GetParam(), wait, await_flags_cpu, TROUPE_CUDA_PATH(await_flags_cuda));
      testing::run(GetParam(), told, signal_flags_cpu, TROUPE_CUDA_PATH(signal_flags_cuda));
    };
    for (uint32_t n = 0; n < 4; ++n) {
      both();
      EXPECT_EQ(p.missing[0], -1);
      for (size_t i = 0; i < 3; ++i) EXPECT_EQ(p.flags[i], 0xffffffffu + n) << i;
    }
    p.flags[1] = 0;  // behind: nothing is counted
    both();
    EXPECT_EQ(p.missing[0], 1);
    EXPECT_EQ(p.flags[2], 2u);
  }
}

TEST_P(PeerFlagsTest, F_AWaitBehindOneThatGaveUpEndsAtOnceAndNamesNobodyElse) {
  Problem p({9, 8}), ref({9, 8});
  p.missing[0] = 0;
  ref.missing[0] = 0;
  const auto begin = Clock::now();
  EXPECT_EQ(await(p, 9, 3600 * kSecond), 0);
  EXPECT_LT(Clock::now() - begin, std::chrono::minutes(2));
  await_flags_ref(ref.await(9, 0));
  EXPECT_EQ(ref.missing[0], 0);
}

INSTANTIATE_TEST_SUITE_P(All, PeerFlagsTest, ::testing::Values(Backend::kCpu, Backend::kCuda),
                         [](const auto& c) { return std::string(testing::name(c.param)); });

// Each side writes plain memory and says so; 2000 times, both must see what the other wrote.
TEST(PeerFlags, WhatWasWrittenBeforeASignalIsSeenAfterTheWait) {
  Problem there({0}), back({0});
  std::vector<uint32_t> message(1000), answer(1000);
  constexpr uint32_t kRounds = 2000;
  std::jthread other([&] {
    for (uint32_t n = 1; n <= kRounds; ++n) {
      await_flags_cpu(there.await(n, 60 * kSecond), serial);
      for (size_t i = 0; i < message.size(); ++i) answer[i] = message[i] + 1;
      signal_flags_cpu(back.signal(n), serial);
    }
  });
  uint64_t wrong = 0;
  for (uint32_t n = 1; n <= kRounds; ++n) {
    for (uint32_t& m : message) m = n;
    signal_flags_cpu(there.signal(n), serial);
    await_flags_cpu(back.await(n, 60 * kSecond), serial);
    for (const uint32_t a : answer) wrong += a == n + 1 ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(there.missing[0], -1);
  EXPECT_EQ(back.missing[0], -1);
}

TEST(PeerFlags, RefusesMoreFlagsThanThereArePeersAndFlagsThatAreMissing) {
  Problem p({1});
  AwaitFlags await = p.await(1, 0);
  await.count = 2;
  EXPECT_THROW(await_flags_cpu(await, serial), Error);
  await = p.await(1, -1);
  EXPECT_THROW(await_flags_cpu(await, serial), Error);
  SignalFlags signal = p.signal(1);
  signal.count = kMostPeers + 1;
  EXPECT_THROW(signal_flags_cpu(signal, serial), Error);
}

}  // namespace
}  // namespace troupe
