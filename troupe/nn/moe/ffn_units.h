// What stands between the two products of a feed-forward, by plain ATen: for the implementations of
// experts that are not fused.
#pragma once

#include <ATen/core/Tensor.h>

#include "troupe/ops/moe_ffn/moe_ffn.h"

namespace troupe {

// h [., 2F, ...] gives act(g) (v + offset) of its halves g and v along dimension 1, [., F, ...];
// ungated, act(h). Clamps as rule X4 has them.
at::Tensor ffn_units(const at::Tensor& h, bool gated, const FfnOptions& options);

}  // namespace troupe
