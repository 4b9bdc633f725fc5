// What each rank of a run does in a step, event by event: its list (action.h) with what the executor
// makes of each action. Events of memory and sums are of the rank alone; four kinds meet other ranks.
//
//   meet    a collective of a group: waits for all its members
//   send    message n of a channel: waits until no more than `capacity` before it are not yet asked
//           for, with 0 until the receive is posted: a rendezvous
//   post    a receive, begun where it stands in the list; waits for nobody
//   await   message n has come
//
// In the executor gathers and reductions are begun at one place and waited for at another, and a
// channel has room for StepWork::depth messages. Here a collective waits where it begins. An
// execution that waits more is one of those that the executor may have; so if all of the former end,
// so do all of the latter (prove.h).
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "troupe/schedule/action.h"
#include "troupe/schedule/step_world.h"
#include "troupe/schedule/work.h"

namespace troupe {

enum class Thing : uint8_t {
  kOutput,         // of a unit
  kInputGradient,  // of a unit
  kGraph,          // of a forward, for its backward
  kLate,           // between the halves of a backward
  kLight,          // a light forward, for the one that is done again
  kParams,         // gathered
  kSum,            // of gradients
  kReplicaSum,
  kForwardCall,
  kBackwardCall,
  kUpdate,
  kStepEnd,
};
constexpr auto names_of(Thing) {
  return std::array{
      Named{"output", Thing::kOutput},        Named{"input's gradient", Thing::kInputGradient},
      Named{"graph", Thing::kGraph},          Named{"late gradients", Thing::kLate},
      Named{"light forward", Thing::kLight},  Named{"parameters", Thing::kParams},
      Named{"sum of gradients", Thing::kSum}, Named{"sum over replicas", Thing::kReplicaSum},
      Named{"forward", Thing::kForwardCall},  Named{"backward", Thing::kBackwardCall},
      Named{"update", Thing::kUpdate},        Named{"end of the step", Thing::kStepEnd}};
}

struct Name {
  Thing thing = Thing::kOutput;
  int chunk = -1, microbatch = -1;
  auto operator<=>(const Name&) const = default;
};
std::string to_text(const Name& name);  // "output of 3.1"

struct Event {
  enum Kind : uint8_t {
    kMeet,
    kSend,
    kPost,
    kAwait,
    kMake,   // a value comes to be
    kRead,   // it is there
    kDrop,   // it goes
    kAdd,    // part `size` (kBoth, kFirst, kSecond) of a gradient is added to this rank's sum
    kFold,   // this rank's sum of chunk `where` goes to a reduction
    kWhole,  // one of the buckets of chunk `where` is summed over all that hold it
    kUse,    // the update reads the chunk's gradients, of `number` microbatches and `size` buckets
  };
  static constexpr int64_t kFirst = 1, kSecond = 2, kBoth = 3;
  static constexpr int64_t kAnySize = -1;
  Kind kind;
  Name what = {};
  int where = -1;     // the group, or the channel, or the chunk that names the sum
  int64_t size = 0;   // of a message; of a collective on this rank
  int number = -1;    // of a message on its channel
  int position = -1;  // of the action in the list
  bool operator==(const Event&) const = default;
};

struct WorldEvents {
  struct Link {
    int from, to;
    bool gradients;
    auto operator<=>(const Link&) const = default;
  };
  std::vector<std::vector<Event>> ranks = {};
  std::vector<std::vector<int>> groups = {};  // ranks of each
  std::vector<Link> links = {};               // a channel each: first in, first out
  std::vector<Schedule> schedules = {};
  std::vector<std::pair<size_t, size_t>> lists = {};  // of each rank: a schedule, a list of it
  const std::vector<Action>& list_of(size_t rank) const {
    return schedules[lists[rank].first][lists[rank].second];
  }
};

// `schedules`: one for all replicas, or one for each.
WorldEvents world_events(const std::vector<Schedule>& schedules, const StepWork& work,
                         const StepWorld& world);

}  // namespace troupe
