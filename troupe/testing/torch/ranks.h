// A test of several ranks, each a process of its own over Gloo:
//
//   TEST(Group, SumsOverRanks) {
//     in_ranks(4, [](World& world) { EXPECT_EQ(...); });
//   }
//
// The test's process starts `ranks` copies of this program with this test alone; in each of them
// the call of in_ranks with the same number in the test runs `body`, and the process ends there.
// In the first process nothing of `body` runs: it waits, and fails where a rank failed or took
// longer than `seconds`. What comes before the call runs in every process.
#pragma once

#include <functional>

#include "troupe/distributed/world/world.h"

namespace troupe::testing {

void in_ranks(int ranks, const std::function<void(World&)>& body, int seconds = 60);
// With other options of the world; its times are those of in_ranks.
void in_ranks(int ranks, const WorldOptions& how, const std::function<void(World&)>& body,
              int seconds = 60);
// Ranks that are threads of this process (distributed/world/threads.h), on the CPU: in a hundredth
// of the time, where no process must end. What a rank throws fails the test, and ends the others.
void in_threads(int ranks, const std::function<void(World&)>& body, int seconds = 60);
void in_threads(int ranks, WorldOptions how, const std::function<void(World&)>& body,
                int seconds = 60);

// in_ranks with the exit code or, negative, the signal that is expected of each rank. A collective waits half of
// `seconds`.
void in_ranks_that_end(const std::vector<int>& ends, const std::function<void(World&)>& body,
                       int seconds = 60);

// Ranks whose tensors are on GPUs: each has one of its own, or, where there are fewer, several share
// one and collectives go through host memory. The test skips itself where there is none.
void in_ranks_on_gpus(const std::vector<int>& ends, const std::function<void(World&)>& body,
                      int seconds = 120);

}  // namespace troupe::testing
