// What a training step costs and uses, by the rules N3 and N4. Pure arithmetic; the counts of
// parameters and operations are nn/moe_counts.h's.
#pragma once

#include <cstdint>
#include <string>

namespace troupe {

// Operations of a step's matrix products: backward has two for each of forward's. What is computed
// again in backward is work of the hardware and none of the model, so it is in no model FLOPs.
constexpr double training_flops(double forward_flops) {
  return 3 * forward_flops;
}

// Dense bf16 and f16 products of an H100 or H200 (SXM), operations a second.
inline constexpr double kHopperPeak = 989.5e12;

// A measured step. The share of `peak` that the model's operations were (MFU, N3) means little
// without the rest: with forced routing it is no training speed.
struct Utilization {
  double model_flops = 0;  // of the step, over all ranks
  double seconds = 0;
  int64_t ranks = 1;
  double peak = kHopperPeak;  // of one rank
  int64_t routed_rows = 0;    // rows that experts computed in the step: dropped ones are not in it
  double max_over_mean = 0;   // of the experts' loads
  bool forced = false;        // R3

  double flops_per_rank() const { return model_flops / (seconds * static_cast<double>(ranks)); }
  double mfu() const { return flops_per_rank() / peak; }
};

// "MFU 41.2% of 989.5 TFLOP/s (407.7 a rank), 65536 routed rows, max/mean 1.08, learned routing",
// or
// "... FORCED ROUTING".
std::string utilization_line(const Utilization& u);

enum class TrainingPrecision {
  kBf16,  // bf16 weights, f32 gradients
  kF16,   // f16 weights and gradients, f32 copies of both for the step
  kF32,
};

// Bytes a parameter of training with Adam (N4, less the 2 that masters of bf16 in halves save:
// core/split_f32.h): what every rank keeps, and what the optimizer keeps, which may be cut into d
// parts. d is DP x CP for dense parameters and EDP for experts.
struct StateBytes {
  int64_t kept;      // weight and gradient
  int64_t cuttable;  // rest of the master weight (and f32 gradient of f16), both moments

  constexpr double per_parameter(int64_t d = 1) const {
    return static_cast<double>(kept) + static_cast<double>(cuttable) / static_cast<double>(d);
  }
};
constexpr StateBytes state_bytes(TrainingPrecision p) {
  switch (p) {
    case TrainingPrecision::kBf16: return {2 + 4, 2 + 4 + 4};
    case TrainingPrecision::kF16: return {2 + 2, 4 + 4 + 4 + 4};
    case TrainingPrecision::kF32: return {4 + 4, 4 + 4};
  }
  return {0, 0};
}

// A rank's parameters and how often their optimizer state is cut.
struct RankParameters {
  int64_t dense = 0, experts = 0;
  int64_t dense_cuts = 1, expert_cuts = 1;
};
constexpr double state_bytes_of(TrainingPrecision p, const RankParameters& r) {
  const StateBytes b = state_bytes(p);
  return static_cast<double>(r.dense) * b.per_parameter(r.dense_cuts) +
         static_cast<double>(r.experts) * b.per_parameter(r.expert_cuts);
}

}  // namespace troupe
