// Is the mixture of experts healthy? One verdict over all layers, and the knob to turn where not.
// With c the tokens of an expert, m their mean over the layer's experts:
//
//   load   max c / m     red when over `load` for `load_steps` steps
//   dead   experts with c < 0.01 m over the last `dead_window` steps; red over a fraction `dead`
//   drop   dropped / assigned   red over `drop`
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

namespace troupe {

struct HealthConfig {
  double load = 3;
  int64_t load_steps = 100;
  double dead = 0.02;
  int64_t dead_window = 50;
  double drop = 0.05;
  static void visit(auto& c, auto&& f) {
    f("load", c.load);
    f("load_steps", c.load_steps);
    f("dead", c.dead);
    f("dead_window", c.dead_window);
    f("drop", c.drop);
  }
};

// What a layer routed in some steps.
struct LayerLoad {
  int64_t layer = 0;
  std::vector<double> counts = {};  // of each expert
  double dropped = 0;
  bool forced = false;

  double max_over_mean() const;
  double cv() const;  // standard deviation over mean
  double dropped_fraction() const;
  int64_t dead(double below = 0.01) const;  // experts under that part of the mean
};

class MoeHealth {
 public:
  explicit MoeHealth(HealthConfig config) : config_(config) {}

  // Adds the loads of the `steps` steps up to `step`; returns the verdict: "moe: healthy", or
  // "moe: layer 7: 3 of 64 experts dead for 200 steps (raise model.moe.router.balance); ...".
  std::string add(int64_t step, int64_t steps, const std::vector<LayerLoad>& loads);

 private:
  struct Piece {
    int64_t steps;
    std::vector<double> counts;
  };
  struct Layer {
    std::deque<Piece> window;
    int64_t overloaded_since = -1, dead_since = -1;  // the step before; -1: not
  };
  std::vector<std::string> faults_of(Layer& layer, const LayerLoad& load, int64_t step,
                                     int64_t steps) const;

  HealthConfig config_;
  std::map<int64_t, Layer> layers_;
};

}  // namespace troupe
