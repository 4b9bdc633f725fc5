// A rank's memory use as it executes its list of actions, and its peak.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "troupe/plan/step_costs.h"
#include "troupe/schedule/action.h"

namespace troupe {

struct StepMemory {  // bytes, at one moment
  double values = 0, state = 0, gradients = 0, activations = 0, workspace = 0, runtime = 0;
  double total() const { return values + state + gradients + activations + workspace + runtime; }
  static void visit(auto& m, auto&& f) {
    f("values", m.values);
    f("state", m.state);
    f("gradients", m.gradients);
    f("activations", m.activations);
    f("workspace", m.workspace);
    f("runtime", m.runtime);
  }
};

class Holdings {
 public:
  // `owner`: -1 for chunks of other ranks. `drops`: the list frees chunks, so that a rank keeps
  // only its shard of their values between uses. `depth`: sends of a channel that are held at a
  // time.
  Holdings(const StepCosts& costs, const std::vector<int>& owner, bool drops, int depth);

  void issue(const Action& action);
  void finish_sum();  // frees the buffer of the oldest reduction
  const StepMemory& peak() const { return peak_; }

 private:
  void forward(const Action& action);
  void backward(const Action& action);
  void backward_input(const Action& action);
  void reduce(int chunk);
  void send(const Action& action);
  void update(int chunk);
  // What was received for a computation is now its own.
  void take(int chunk, int microbatch);
  // Updates the peak; `gradients`: that are made and not yet added to others.
  void look(double workspace, double gradients = 0);

  const StepCosts& costs_;
  const std::vector<int>& owner_;
  bool drops_;
  size_t depth_;
  std::set<std::pair<int, int>> received_;                   // chunk, microbatch
  std::map<std::pair<int, bool>, std::deque<double>> sent_;  // peer, whether gradients -> bytes
  std::set<std::pair<int, int>> light_;  // chunk, microbatch: only the input is kept
  std::map<int, double> here_;           // chunk: its gradients before their reduction
  std::set<int> summed_;
  double updating_ = 0;  // gradients of the owner that is updated beside backward
  std::deque<double> in_flight_;
  StepMemory now_, peak_;
};

}  // namespace troupe
