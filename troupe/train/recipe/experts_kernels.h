// Which kernels compute a model's experts on a GPU: said at the start of a run (rule E8) and,
// before one, by `troupe doctor --recipe`.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/nn/config/config.h"
#include "troupe/ops/moe_ffn/moe_ffn_sm90.h"

namespace troupe {

struct GpuProducts {
  c10::ScalarType type;
  GpuKind gpu;
  int64_t slices = 1;  // of each expert's hidden width (parallel.expert_tensor)
  bool trial = false;  // run.trial_kernels
};

Sm90Form sm90_form(const ModelConfig& model, const MoeConfig& moe, const GpuProducts& products);

struct ExpertsKernels {
  // "experts: fused kernels for Hopper", or which others and why. Empty for a dense model, and
  // without a GPU.
  std::string line;
  // Kernels of the first MoE layer, where all are fused: a line for each, for `tokens`
  // tokens at a time on each rank.
  std::vector<std::string> fused = {};
};
ExpertsKernels experts_kernels(const ModelConfig& model, const GpuProducts& products,
                               int64_t tokens);

}  // namespace troupe
