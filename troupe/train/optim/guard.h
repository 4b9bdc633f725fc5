// What stands between a gradient and the weights: the scale of fp16's loss, and the test for values
// that are not finite or far out of line. Both are plain state that a checkpoint keeps.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

// fp16's gradients are computed of scale * loss. After `hysteresis` steps that overflow (not
// necessarily in a row) the scale halves, and halves again at each further one; after `window` good
// steps in a row it doubles and the hysteresis is whole again.
struct LossScaleConfig {
  double initial = 4294967296;  // 2^32
  int64_t window = 1000;
  int64_t hysteresis = 2;
  double least = 1;
  static void visit(auto& c, auto&& f) {
    f("initial", c.initial, "Initial scale.");
    f("window", c.window, "Steps without overflow before the scale doubles.");
    f("hysteresis", c.hysteresis, "Overflows before the scale halves.");
    f("least", c.least, "Minimum scale.");
  }
};
struct LossScaleState {
  double scale = 1;
  int64_t good = 0;
  int64_t left = 2;  // of the hysteresis
  static void visit(auto& c, auto&& f) {
    f("scale", c.scale);
    f("good", c.good);
    f("left", c.left);
  }
};
LossScaleState start_of(const LossScaleConfig& config);
void update(LossScaleState& state, const LossScaleConfig& config, bool overflow);

// A loss or a gradient's norm is a spike if it is more than `sigmas` standard deviations above
// the mean of the last `window` steps that were not. There is no verdict before `window` / 2 steps.
struct SpikeConfig {
  double sigmas = 6;  // 0: off
  int64_t window = 128;
  bool skip = false;  // leave the step out, instead of saying so
  static void visit(auto& c, auto&& f) {
    f("sigmas", c.sigmas, "Threshold in standard deviations above the mean; 0: off.");
    f("window", c.window, "Steps in the running mean.");
    f("skip", c.skip, "Skips the update of such a step, besides the warning.");
  }
};
struct SpikeState {
  std::vector<double> losses = {}, norms = {};  // the newest last
  static void visit(auto& c, auto&& f) {
    f("losses", c.losses);
    f("norms", c.norms);
  }
};
// A value above its limit is a spike; infinity: before there is a verdict, or values do not vary.
struct SpikeLimits {
  double loss = std::numeric_limits<double>::infinity();
  double norm = loss;
};
SpikeLimits limits_of(const SpikeState& state, const SpikeConfig& config);

// "loss 9.1 is 7.3 sigma above the last 128 steps", or nothing; then the values join the window.
std::string judge(SpikeState& state, const SpikeConfig& config, double loss, double norm);

}  // namespace troupe
