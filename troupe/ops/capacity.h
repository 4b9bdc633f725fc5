// Expert capacity, rules C2 to C5: kernels/capacity has the formula.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "troupe/kernels/capacity/capacity.h"

namespace troupe {

struct DropOptions {
  int64_t experts;
  CapacityRule rule;
  DropPolicy policy = DropPolicy::kProbs;
  bool renormalize = false;
};

struct KeptSlots {
  at::Tensor ids_TK;      // int32, -1 where dropped
  at::Tensor weights_TK;  // as weights; 0 where dropped. Differentiable in weights.
  at::Tensor dropped;     // int64 scalar
};

// ids int32 [T, K], weights f32 [T, K] (f64 on the CPU), valid bool [T] or absent. C is computed on
// the device, so nothing waits.
KeptSlots drop_over_capacity(const at::Tensor& ids_TK, const at::Tensor& weights_TK,
                             const std::optional<at::Tensor>& valid_T, const DropOptions& options);

}  // namespace troupe
