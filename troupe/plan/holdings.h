// What a rank's memory holds as it goes through its list of actions, and the worst moment of that.
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
  // `drops`: the list frees chunks, so that between uses a part of their values is here.
  Holdings(const StepCosts& costs, const std::vector<int>& owner, bool drops);

  void issue(const Action& action);
  void finish_sum();  // of the oldest reduction: its buffer goes
  const StepMemory& peak() const { return peak_; }

 private:
  void forward(const Action& action);
  void backward(const Action& action);
  void reduce(int chunk);
  void look(double workspace);  // is this the worst moment?

  const StepCosts& costs_;
  const std::vector<int>& owner_;
  bool drops_;
  std::set<std::pair<int, int>> light_;  // chunk, microbatch: the input alone is kept
  std::map<int, double> here_;           // chunk: its gradients before ranks sum them
  std::set<int> summed_;
  std::deque<double> in_flight_;
  StepMemory now_, peak_;
};

}  // namespace troupe
