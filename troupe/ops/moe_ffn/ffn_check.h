// The arguments of the operators of experts, checked: sizes, types, devices and the plan.
#pragma once

#include "troupe/ops/moe_ffn/moe_ffn.h"

namespace troupe {

// The sizes of a call, symbolic while it is traced.
struct FfnSizes {
  c10::SymInt tokens, width, experts, hidden, columns;  // columns: of H
  bool gated;
};

// Refuses what does not fit together.
FfnSizes check_ffn(const at::Tensor& x, const at::Tensor& weights, const Plan& plan,
                   const ExpertWeights& experts, const WeightLayout& layout = {});

}  // namespace troupe
