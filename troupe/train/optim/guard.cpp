#include "troupe/train/optim/guard.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace troupe {
namespace {

// How many standard deviations x is above the values' mean; 0 where they do not vary.
double sigmas_above(const std::vector<double>& values, double x) {
  double sum = 0, squares = 0;
  for (const double v : values) sum += v;
  const double mean = sum / static_cast<double>(values.size());
  for (const double v : values) squares += (v - mean) * (v - mean);
  const double std = std::sqrt(squares / static_cast<double>(values.size()));
  return std == 0 ? 0 : (x - mean) / std;
}

std::string verdict(const char* what, const std::vector<double>& values, double x,
                    const SpikeConfig& config) {
  if (static_cast<int64_t>(values.size()) < std::max<int64_t>(2, config.window / 2)) return {};
  const double sigmas = sigmas_above(values, x);
  if (sigmas <= config.sigmas) return {};
  char text[128];
  std::snprintf(text, sizeof(text), "%s %.4g is %.1f sigma above the last %zu steps", what, x,
                sigmas, values.size());
  return text;
}

void push(std::vector<double>& values, double x, int64_t window) {
  values.push_back(x);
  if (static_cast<int64_t>(values.size()) > window) values.erase(values.begin());
}

}  // namespace

LossScaleState start_of(const LossScaleConfig& config) {
  return {.scale = config.initial, .good = 0, .left = config.hysteresis};
}

void update(LossScaleState& s, const LossScaleConfig& config, bool overflow) {
  if (overflow) {
    s.good = 0;
    s.left = std::max<int64_t>(0, s.left - 1);
    if (s.left == 0) s.scale = std::max(config.least, s.scale / 2);
    return;
  }
  if (++s.good < config.window) return;
  s.good = 0;
  s.left = config.hysteresis;
  s.scale *= 2;
}

std::string judge(SpikeState& state, const SpikeConfig& config, double loss, double norm) {
  if (config.sigmas == 0) return {};
  std::string out = verdict("loss", state.losses, loss, config);
  if (out.empty()) out = verdict("gradient norm", state.norms, norm, config);
  if (out.empty()) {
    push(state.losses, loss, config.window);
    push(state.norms, norm, config.window);
  }
  return out;
}

}  // namespace troupe
