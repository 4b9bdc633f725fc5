#include "troupe/nn/moe_stats.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <vector>

namespace troupe {
namespace {

at::Tensor sum_of(const at::Tensor& a, const at::Tensor& b) {
  return !a.defined() ? b : !b.defined() ? a : a + b;
}

}  // namespace

MoeStats& MoeStats::operator+=(const MoeStats& other) {
  const at::NoGradGuard no_grad;
  counts_E = sum_of(counts_E, other.counts_E);
  dropped = sum_of(dropped, other.dropped);
  score_sum = score_sum.defined() && other.score_sum.defined() ? (score_sum + other.score_sum) / 2
                                                               : sum_of(score_sum, other.score_sum);
  forced = forced || other.forced;
  saturated = sum_of(saturated, other.saturated);
  return *this;
}

LoadStats load_stats(const MoeStats& stats) {
  LoadStats out;
  out.forced = stats.forced;
  if (stats.saturated.defined()) out.saturated = stats.saturated.sum().item<int64_t>();
  if (stats.dropped.defined()) out.dropped = stats.dropped.sum().item<int64_t>();
  if (stats.score_sum.defined()) out.score_sum = stats.score_sum.item<double>();
  if (!stats.counts_E.defined() || stats.counts_E.numel() == 0) return out;
  const at::Tensor host = stats.counts_E.cpu().contiguous();
  const std::vector<int64_t> counts(host.const_data_ptr<int64_t>(),
                                    host.const_data_ptr<int64_t>() + host.numel());
  out.experts = host.numel();
  for (const int64_t c : counts) {
    out.assignments += c;
    out.dead_experts += c == 0;
  }
  if (out.assignments == 0) return out;
  const double mean = static_cast<double>(out.assignments) / static_cast<double>(out.experts);
  double squares = 0;
  for (const int64_t c : counts) {
    squares += (static_cast<double>(c) - mean) * (static_cast<double>(c) - mean);
  }
  const auto [low, high] = std::minmax_element(counts.begin(), counts.end());
  out.max_over_mean = static_cast<double>(*high) / mean;
  out.min_over_mean = static_cast<double>(*low) / mean;
  out.std = std::sqrt(squares / static_cast<double>(out.experts));
  return out;
}

std::string health_line(int64_t layer, const LoadStats& s, const HealthLimits& limits) {
  std::ostringstream why, line;
  line.precision(3);
  why.precision(3);
  const auto say = [&](const auto&... part) {
    why << (why.tellp() == 0 ? "" : "; ");
    (why << ... << part);
  };
  const double dead =
      s.experts == 0 ? 0 : static_cast<double>(s.dead_experts) / static_cast<double>(s.experts);
  if (s.assignments == 0) say("no tokens");
  if (s.assignments > 0 && dead > limits.dead_fraction)
    say(s.dead_experts, " experts got no token");
  if (s.max_over_mean > limits.max_over_mean) {
    say("the fullest expert has ", s.max_over_mean, " times the mean");
  }
  if (s.dropped_fraction() > limits.dropped_fraction) {
    say(100 * s.dropped_fraction(), "% of the assignments were dropped");
  }
  if (s.score_sum > 0 && s.score_sum < limits.score_sum) {
    say("the chosen scores sum to ", s.score_sum, " only");
  }
  if (s.saturated > 0) {
    say(s.saturated, " groups of saved activations are beyond what 8 or 4 bits can hold");
  }
  const std::string reasons = why.str();
  line << "layer " << layer << ": " << (reasons.empty() ? "healthy" : "not healthy: " + reasons)
       << ", max/mean " << s.max_over_mean << ", min/mean " << s.min_over_mean << ", dropped "
       << s.dropped << ", dead " << s.dead_experts << " of " << s.experts;
  if (s.forced) line << ", FORCED ROUTING";
  return line.str();
}

}  // namespace troupe
