#include "troupe/train/optim/guard.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace troupe {
namespace {

struct Spread {
  double mean, std;
};
Spread spread_of(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (const double v : values) sum += v;
  const double mean = sum / static_cast<double>(values.size());
  for (const double v : values) squares += (v - mean) * (v - mean);
  return {mean, std::sqrt(squares / static_cast<double>(values.size()))};
}

double limit_of(const std::vector<double>& values, const SpikeConfig& config) {
  const auto least = std::max<int64_t>(2, config.window / 2);
  if (config.sigmas > 0 && static_cast<int64_t>(values.size()) >= least) {
    const Spread s = spread_of(values);
    if (s.std > 0) return s.mean + config.sigmas * s.std;
  }
  return std::numeric_limits<double>::infinity();
}

std::string verdict(const char* what, const std::vector<double>& values, double x, double limit) {
  if (x <= limit) return {};
  const Spread s = spread_of(values);
  char text[128];
  std::snprintf(text, sizeof(text), "%s %.4g is %.1f sigma above the last %zu steps", what, x,
                (x - s.mean) / s.std, values.size());
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

SpikeLimits limits_of(const SpikeState& state, const SpikeConfig& config) {
  return {limit_of(state.losses, config), limit_of(state.norms, config)};
}

std::string judge(SpikeState& state, const SpikeConfig& config, double loss, double norm) {
  if (config.sigmas == 0) return {};
  const SpikeLimits limits = limits_of(state, config);
  std::string out = verdict("loss", state.losses, loss, limits.loss);
  if (out.empty()) out = verdict("gradient norm", state.norms, norm, limits.norm);
  if (out.empty()) {
    push(state.losses, loss, config.window);
    push(state.norms, norm, config.window);
  }
  return out;
}

}  // namespace troupe
