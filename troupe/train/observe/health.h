// Health of the experts: one verdict over all layers, and the key to change if it is bad.
// With c the tokens of an expert, m their mean over the layer's experts:
//
//   load   max c / m     red when over `load` for `load_steps` steps
//   dead   experts with c < 0.01 m over the last `dead_window` steps; red over a fraction `dead`
//   drop   dropped / assigned   red over `drop`
//   scores   mean of a token's chosen scores, their sum; red under `score_sum`: sigmoid scores that
//            shrink cheat the balance loss (R6)
//   quantize   any group of kept activations whose scale was cut
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

struct HealthConfig {
  double load = 3;
  int64_t load_steps = 100;
  double dead = 0.02;
  int64_t dead_window = 50;
  double drop = 0.05;
  double score_sum = 1e-3;
  static void visit(auto& c, auto&& f) {
    f("load", c.load, "Load of the busiest expert over the mean.");
    f("load_steps", c.load_steps, "Consecutive steps above it.");
    f("dead", c.dead, "Fraction of experts below 1 % of the mean load.");
    f("dead_window", c.dead_window, "Steps over which dead experts are counted.");
    f("drop", c.drop, "Fraction of choices dropped by capacity.");
    f("score_sum", c.score_sum,
      "Least mean sum of a token's chosen scores, of routers without softmax.");
  }
};

// Routing counts of a layer over some steps.
struct LayerLoad {
  int64_t layer = 0;
  std::vector<double> counts = {};  // of each expert
  double dropped = 0;
  bool forced = false;
  double saturated = 0;                  // groups of kept activations beyond 8 or 4 bits (Q2)
  std::optional<double> score_sum = {};  // of a token's chosen scores, the mean; not of a softmax

  double max_over_mean() const;
  double min_over_mean() const;
  double median_over_mean() const;  // even number of experts: the mean of the two in the middle
  double cv() const;                // standard deviation over mean
  double dropped_fraction() const;
  int64_t dead(double below = 0.01) const;  // number of experts below that fraction of the mean
};

class MoeHealth {
 public:
  explicit MoeHealth(HealthConfig config) : config_(config) {}

  // Adds the loads of the `steps` steps up to `step`; returns what there is to say, empty: nothing
  // new. A fault is said once: "moe: layer 7: 3 of 64 experts dead for 200 steps (raise
  // model.moe.router.balance); ...". "moe: healthy" is said once no limit has been passed for the
  // steps that judging takes, the longer of `load_steps` and `dead_window`; a fault after it is
  // said anew. Before the first of both: "moe: not judged yet", once.
  std::string add(int64_t step, int64_t steps, const std::vector<LayerLoad>& loads);

 private:
  struct LoadSum {
    int64_t steps;
    std::vector<double> counts;
  };
  struct Layer {
    std::deque<LoadSum> window;
    int64_t overloaded_since = -1, dead_since = -1;  // the step before; -1: it is not
  };
  enum class Kind { kDead, kLoad, kDrop, kScores, kSaturated };
  struct Fault {
    Kind kind;
    std::string text;
  };
  // `over`: set where a limit is passed, and not for as long as makes a fault.
  std::vector<Fault> faults_of(Layer& layer, const LayerLoad& load, int64_t step, int64_t steps,
                               bool& over) const;

  HealthConfig config_;
  std::map<int64_t, Layer> layers_;
  std::set<std::pair<int64_t, Kind>> said_;  // layers with their faults, since it was healthy
  std::optional<int64_t> calm_since_;        // the last step with a limit passed, or the first
  bool healthy_ = false;                     // that is what was said
};

}  // namespace troupe
