#include "troupe/train/observe/health.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "troupe/core/text/text.h"
#include "troupe/train/observe/step_line.h"

namespace troupe {
namespace {

double mean_of(const std::vector<double>& counts) {
  const double sum = std::accumulate(counts.begin(), counts.end(), 0.0);
  return counts.empty() ? 0 : sum / static_cast<double>(counts.size());
}

}  // namespace

double LayerLoad::max_over_mean() const {
  const double mean = mean_of(counts);
  return mean == 0 ? 0 : *std::max_element(counts.begin(), counts.end()) / mean;
}

double LayerLoad::min_over_mean() const {
  const double mean = mean_of(counts);
  return mean == 0 ? 0 : *std::min_element(counts.begin(), counts.end()) / mean;
}

double LayerLoad::median_over_mean() const {
  const double mean = mean_of(counts);
  if (mean == 0) return 0;
  std::vector<double> sorted = counts;
  std::sort(sorted.begin(), sorted.end());
  const size_t half = sorted.size() / 2;
  const double middle =
      sorted.size() % 2 == 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
  return middle / mean;
}

double LayerLoad::cv() const {
  const double mean = mean_of(counts);
  double squares = 0;
  for (const double c : counts) squares += (c - mean) * (c - mean);
  return mean == 0 ? 0 : std::sqrt(squares / static_cast<double>(counts.size())) / mean;
}

double LayerLoad::dropped_fraction() const {
  const double assigned = std::accumulate(counts.begin(), counts.end(), 0.0);
  return assigned == 0 ? 0 : dropped / assigned;
}

int64_t LayerLoad::dead(double below) const {
  const double limit = below * mean_of(counts);
  return std::count_if(counts.begin(), counts.end(), [&](double c) { return c < limit; });
}

std::vector<MoeHealth::Fault> MoeHealth::faults_of(Layer& layer, const LayerLoad& load,
                                                   int64_t step, int64_t steps, bool& over) const {
  std::vector<Fault> out;
  const auto add = [&](Kind kind, std::string text) { out.push_back({kind, std::move(text)}); };
  layer.window.push_back({steps, load.counts});
  int64_t held = 0;
  for (const LoadSum& piece : layer.window) held += piece.steps;
  while (held - layer.window.front().steps >= config_.dead_window) {
    held -= layer.window.front().steps;
    layer.window.pop_front();
  }
  LayerLoad whole{.layer = load.layer, .counts = std::vector<double>(load.counts.size(), 0.0)};
  for (const LoadSum& piece : layer.window) {
    for (size_t e = 0; e < whole.counts.size(); ++e) whole.counts[e] += piece.counts[e];
  }
  const int64_t experts = static_cast<int64_t>(load.counts.size()), dead = whole.dead();
  const bool too_many = static_cast<double>(dead) > config_.dead * static_cast<double>(experts);
  if (held < config_.dead_window || !too_many) {
    layer.dead_since = -1;
    over |= too_many;
  } else {
    if (layer.dead_since < 0) layer.dead_since = step - held;
    add(Kind::kDead, std::to_string(dead) + " of " + std::to_string(experts) +
                         " experts dead for " + std::to_string(step - layer.dead_since) +
                         " steps (raise model.moe.router.balance, or lower the learning rate)");
  }
  const double ratio = load.max_over_mean();
  if (ratio <= config_.load) {
    layer.overloaded_since = -1;
  } else {
    if (layer.overloaded_since < 0) layer.overloaded_since = step - steps;
    if (step - layer.overloaded_since >= config_.load_steps) {
      add(Kind::kLoad, "load max/mean " + fixed(ratio, 1) + " (> " + fixed(config_.load, 1) +
                           ") for " + std::to_string(step - layer.overloaded_since) +
                           " steps (raise model.moe.router.balance)");
    } else {
      over = true;
    }
  }
  if (load.dropped_fraction() > config_.drop) {
    add(Kind::kDrop, "dropped " + fixed(100 * load.dropped_fraction(), 1) + "% (> " +
                         fixed(100 * config_.drop, 1) + "%) (raise or drop model.moe.capacity)");
  }
  if (load.score_sum && *load.score_sum < config_.score_sum) {
    add(Kind::kScores, "a token's chosen scores sum to " + to_text(*load.score_sum) + " (< " +
                           to_text(config_.score_sum) +
                           ") (lower the learning rate of the router)");
  }
  if (load.saturated > 0) {
    add(Kind::kSaturated,
        fixed(load.saturated, 0) +
            " groups of saved activations are beyond what 8 or 4 bits can hold (drop "
            "model.moe.quantize)");
  }
  return out;
}

std::string MoeHealth::add(int64_t step, int64_t steps, const std::vector<LayerLoad>& loads) {
  const bool first = !calm_since_;
  if (first) calm_since_ = step - steps;
  std::string verdict;
  bool forced = false, over = false, is_new = false;
  for (const LayerLoad& load : loads) {
    forced |= load.forced;
    std::string line;
    for (const Fault& fault : faults_of(layers_[load.layer], load, step, steps, over)) {
      line += (line.empty() ? "" : "; ") + fault.text;
      is_new |= said_.insert({load.layer, fault.kind}).second;
    }
    if (line.empty()) continue;
    verdict +=
        (verdict.empty() ? "" : "; ") + ("layer " + std::to_string(load.layer) + ": " + line);
  }
  if (over || !verdict.empty()) calm_since_ = step;
  const int64_t judged_after = std::max(config_.load_steps, config_.dead_window);
  if (!verdict.empty()) {
    healthy_ = false;
    if (!is_new) return {};
  } else if (step - *calm_since_ >= judged_after) {
    if (std::exchange(healthy_, true)) return {};
    said_.clear();
    verdict = "healthy";
  } else if (first) {
    verdict = "not judged yet: that takes " + std::to_string(judged_after) + " steps";
  } else {
    return {};
  }
  return "moe: " + verdict + (forced ? " FORCED ROUTING" : "");
}

}  // namespace troupe
