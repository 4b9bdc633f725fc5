// What a MoE layer reports of one microbatch, and what that says about its health (rule A8).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace troupe {

// As computed: tensors on the device, nothing copied.
struct MoeStats {
  at::Tensor counts_E;        // int64, as chosen, before dropping
  at::Tensor dropped = {};    // int64 scalar; undefined: nothing can drop
  at::Tensor score_sum = {};  // mean over tokens of the chosen scores' sum (R6); may be undefined
  bool forced = false;        // R3
  // int64 [1]: groups of kept activations that fp16 scales cannot hold (Q2); undefined: none is
  // quantised
  at::Tensor saturated = {};

  // Adds another microbatch or rank of the same layer.
  MoeStats& operator+=(const MoeStats& other);
};

// The same as numbers.
struct LoadStats {
  int64_t assignments = 0;
  int64_t dropped = 0;
  int64_t dead_experts = 0;  // without a single assignment
  int64_t experts = 0;
  double max_over_mean = 0;
  double min_over_mean = 0;
  double std = 0;        // of the counts
  double score_sum = 0;  // 0: the router has no independent scores
  bool forced = false;
  int64_t saturated = 0;  // quantised groups whose scale was cut

  double dropped_fraction() const {
    return assignments == 0 ? 0 : static_cast<double>(dropped) / static_cast<double>(assignments);
  }
};
LoadStats load_stats(const MoeStats& stats);  // copies to the host and waits

struct HealthLimits {
  double max_over_mean = 3;
  double dropped_fraction = 0.1;
  double dead_fraction = 0.02;
  double score_sum = 1e-3;  // below: sigmoid scores shrink to cheat the balance loss (R6)
};

// "layer 3: healthy, max/mean 1.08, min/mean 0.91, dropped 0, dead 0 of 64", or "layer 3: not
// healthy:
// ..." with each reason. Under a benchmark aid the line ends in FORCED ROUTING.
std::string health_line(int64_t layer, const LoadStats& stats, const HealthLimits& limits = {});

}  // namespace troupe
