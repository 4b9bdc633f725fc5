// Simulated timeline of a schedule: the start and end of each action, from its costs. It simulates
// the same list that a rank executes.
//
// A rank computes one action at a time. Gathers and reductions run concurrently, one after another
// in the order of issue, and slow computation down (StepCosts::contention). A computation waits for
// the gather of its parameters, a reduction for the previous one, the update for all of them.
// Expert-parallel transfers are not overlapped with their own computation.
// Between the ranks of a pipeline a value travels when it is sent, its receive is posted and its
// channel is free (schedule/deadlock.h). The computation that uses it waits for it, a send for the
// one `depth` before it. The update waits for all ranks, since the gradients' norm is of all.
// The list is run twice and the second step is reported, because a gather after the update is
// waited for in the next step's forward.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "troupe/plan/holdings.h"
#include "troupe/plan/step_costs.h"
#include "troupe/schedule/action.h"
#include "troupe/schedule/work.h"

namespace troupe {

enum class Lane : uint8_t { kCompute, kExchange, kCollective, kWait };
constexpr auto names_of(Lane) {
  return std::array{Named{"compute", Lane::kCompute}, Named{"exchange", Lane::kExchange},
                    Named{"collective", Lane::kCollective}, Named{"wait", Lane::kWait}};
}

struct TimeSlot {
  Lane lane;
  Action action;  // to which it belongs
  double begin = 0, end = 0;
};

struct RankTimeline {
  std::vector<TimeSlot> slots;  // the step begins at 0
  // compute + exchange + tokens + exposed + bubble + update = seconds, from the start of this step
  // to the next.
  double seconds = 0;
  double compute = 0;   // forward and backward
  double exchange = 0;  // waiting for experts' rows within them
  double tokens = 0;    // waiting for tokens and keys within them
  double exposed = 0;   // waiting for gathers and reductions
  double bubble = 0;    // waiting for other ranks of the pipeline
  double update = 0;
  double collectives = 0;  // gathers and reductions, overlapped or not
  StepMemory peak;         // peak memory
};

// One timeline for each list of the schedule, which must be verified; costs.chunks matches
// work.chunks. A rank knows and holds the chunks that it runs.
std::vector<RankTimeline> timeline_of(const Schedule& schedule, const StepWork& work,
                                      const std::vector<StepCosts>& costs);  // one for each list
std::vector<RankTimeline> timeline_of(const Schedule& schedule, const StepWork& work,
                                      const StepCosts& costs);  // all ranks alike

double step_seconds(const std::vector<RankTimeline>& ranks);  // of the slowest rank

}  // namespace troupe
