// When each action of a schedule happens, by its costs: of the very list that a rank issues.
//
// A rank computes one action at a time. Gathers and sums go one after another beside it, in the
// order that they are issued, and slow it meanwhile (StepCosts::contention); a computation waits
// for the gather of its parameters, a sum for the one before it, the update for all. What a
// computation exchanges with other expert ranks it waits for itself. A receive waits for its send.
// The list is run twice and the second step is told, since a gather that follows the update is
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
  Action action;  // that it is of
  double begin = 0, end = 0;
};

struct RankTimeline {
  std::vector<TimeSlot> slots;  // the step begins at 0
  // compute + exchange + exposed + bubble + update = seconds, from this step's begin to the next's.
  double seconds = 0;
  double compute = 0;   // forward and backward
  double exchange = 0;  // waited for inside of them
  double exposed = 0;   // waited for gathers and sums
  double bubble = 0;    // waited for other pipeline ranks
  double update = 0;
  double collectives = 0;  // gathers and sums, waited for or not
  StepMemory peak;         // the worst moment
};

// One for each list of the schedule, which is verified; costs.chunks is of work.chunks.
std::vector<RankTimeline> timeline_of(const Schedule& schedule, const StepWork& work,
                                      const StepCosts& costs);

double step_seconds(const std::vector<RankTimeline>& ranks);  // of the slowest

}  // namespace troupe
