#include "troupe/schedule/transfers.h"

#include <optional>
#include <utility>
#include <vector>

namespace troupe {
namespace {

class Borders {
 public:
  explicit Borders(const StepWork& work) : work_(work), rank_(chunk_ranks(work)) {}

  // What rank `self` must have received for a computation. `fed`: the chunk's input is there, since
  // it has gone forward lightly.
  std::optional<Action> receive(const Action& a, int self, bool fed) const {
    const bool forward = a.kind == Kind::kForward || a.kind == Kind::kForwardLight;
    if (a.kind == Kind::kBackwardWeight || (forward && fed)) return {};
    const int from = forward ? a.chunk - 1 : a.chunk + 1;
    if (!is_elsewhere(from, self)) return {};
    return Action{Kind::kRecv, forward ? a.chunk : from, a.microbatch, rank_[from]};
  }
  std::optional<Action> send(const Action& a, int self, bool fed) const {
    const bool forward = a.kind == Kind::kForward || a.kind == Kind::kForwardLight;
    if (a.kind == Kind::kBackwardWeight || (forward && fed)) return {};
    const int to = forward ? a.chunk + 1 : a.chunk - 1;
    if (!is_elsewhere(to, self)) return {};
    return Action{Kind::kSend, forward ? to : a.chunk, a.microbatch, rank_[to]};
  }

 private:
  bool is_elsewhere(int chunk, int self) const {
    return chunk >= 0 && chunk < work_.chunks && rank_[static_cast<size_t>(chunk)] != self;
  }

  const StepWork& work_;
  std::vector<int> rank_;
};

// A computation, or two that run beside each other.
struct Computed {
  std::vector<Action> receives = {}, computations = {}, sends = {};
};

void append(std::vector<Action>& list, const std::vector<Action>& actions) {
  list.insert(list.end(), actions.begin(), actions.end());
}

}  // namespace

Schedule with_transfers(Schedule computations, const StepWork& work) {
  const Borders borders(work);
  const auto cells = static_cast<size_t>(work.chunks) * static_cast<size_t>(work.microbatches);
  for (size_t rank = 0; rank < computations.size(); ++rank) {
    const int self = static_cast<int>(rank);
    const std::vector<Action> list = std::exchange(computations[rank], {});
    std::vector<Action>& out = computations[rank];
    std::vector<bool> light(cells, false);
    Computed before;
    for (size_t i = 0; i < list.size();) {
      Computed step;
      do {
        const Action& a = list[i];
        const size_t cell = static_cast<size_t>(a.chunk) * static_cast<size_t>(work.microbatches) +
                            static_cast<size_t>(a.microbatch);
        const bool fed = light[cell];
        if (a.kind == Kind::kForwardLight) light[cell] = true;
        if (const auto receive = borders.receive(a, self, fed)) step.receives.push_back(*receive);
        step.computations.push_back(a);
        if (const auto send = borders.send(a, self, fed)) step.sends.push_back(*send);
      } while (list[i++].beside && i < list.size());
      append(out, step.receives);
      append(out, before.computations);
      append(out, before.sends);
      before = std::move(step);
    }
    append(out, before.computations);
    append(out, before.sends);
  }
  return computations;
}

}  // namespace troupe
