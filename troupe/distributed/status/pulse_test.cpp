#include "troupe/distributed/status/pulse.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "troupe/core/check.h"

namespace troupe {
namespace {

TEST(Pulse, TellsStepAndPhase) {
  Pulse pulse;
  EXPECT_EQ(to_text(pulse.now()), "start");
  pulse.begin(Phase::kLoad);
  EXPECT_EQ(to_text(pulse.now()), "load");
  pulse.done(7);
  pulse.begin(Phase::kForward, 2, 8);
  EXPECT_EQ(to_text(pulse.now()), "step 8, forward 3/8");  // the eighth is under way
  EXPECT_EQ(phase_text(pulse.now()), "forward 3/8");
  pulse.begin(Phase::kSave);
  EXPECT_EQ(to_text(pulse.now()), "step 7, save");
  pulse.begin(Phase::kBackward, 999'999, 1'000'000);
  EXPECT_EQ(phase_text(pulse.now()), "backward 1000000/1000000");
  pulse.begin(Phase::kRecv, 2, 8, 0);
  EXPECT_EQ(to_text(pulse.now()), "step 8, recv 3/8 of microbatch 0");
  pulse.begin(Phase::kSend, 2, 8, 65'534);
  EXPECT_EQ(phase_text(pulse.now()), "send 3/8 of microbatch 65534");
  pulse.set_stage(1, 2);
  EXPECT_EQ(to_text(pulse.now()), "step 8, stage 2/2, send 3/8 of microbatch 65534");
  EXPECT_EQ(phase_text(pulse.now()), "send 3/8 of microbatch 65534");
}

TEST(Pulse, APhaseWithinAnotherEndsUnlessItFails) {
  Pulse pulse;
  pulse.begin(Phase::kForward, 0, 2);
  { const PulseScope scope(pulse, Phase::kDispatch); }
  EXPECT_EQ(phase_text(pulse.now()), "forward 1/2");
  pulse.begin(Phase::kBackward, 0, 2, 3);
  {
    const PulseScope scope(pulse, Phase::kTensor, PulseScope::Within());
    EXPECT_EQ(phase_text(pulse.now()), "tensor 1/2 of microbatch 3");
  }
  EXPECT_EQ(phase_text(pulse.now()), "backward 1/2 of microbatch 3");
  try {
    const PulseScope scope(pulse, Phase::kCombine);
    throw std::runtime_error("lost");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(phase_text(pulse.now()), "combine");
  }
}

TEST(Pulse, CountsItsWaiting) {
  Pulse pulse;
  EXPECT_FALSE(pulse.waiting());
  {
    const Waiting waiting(&pulse);
    EXPECT_TRUE(pulse.waiting());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_FALSE(pulse.waiting());
  EXPECT_GE(pulse.waited_seconds(), 0.02);
  const Waiting of_nobody(nullptr);
}

TEST(Pulses, F84_WhatAKilledProcessDidStaysReadable) {
  Pulses pulses(3);
  ::setenv(kPulsesVariable, pulses.variable().c_str(), 1);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::unique_ptr<Pulses> own = Pulses::of_launcher(3);
    if (!own) ::_exit(1);
    own->of(1).done(4);
    own->of(1).begin(Phase::kReduce, 1, 4);
    own->of(1).set_ending();
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(to_text(pulses.of(1).now()), "step 5, reduce 2/4");
  EXPECT_EQ(to_text(pulses.of(2).now()), "start");
  EXPECT_TRUE(pulses.of(1).ending());
  EXPECT_FALSE(pulses.of(2).ending());
  pulses.of(1).set_ended(/*by_itself=*/true);
  EXPECT_TRUE(pulses.of(1).ended());
  EXPECT_TRUE(pulses.of(1).ended_by_itself());
  pulses.clear();
  EXPECT_FALSE(pulses.of(1).ended());
  EXPECT_FALSE(pulses.of(1).ending());
  ::unsetenv(kPulsesVariable);
}

TEST(Pulses, AVariableThatNamesSomethingElseIsNone) {
  const Pulses pulses(3);
  for (const char* const text : {"0", "-1", "77", "x", ""}) {
    ::setenv(kPulsesVariable, text, 1);
    EXPECT_EQ(Pulses::of_launcher(3), nullptr) << text;
  }
  ::setenv(kPulsesVariable, pulses.variable().c_str(), 1);
  EXPECT_EQ(Pulses::of_launcher(4), nullptr);  // another number of ranks
  ::unsetenv(kPulsesVariable);
}

}  // namespace
}  // namespace troupe
