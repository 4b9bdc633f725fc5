// The path of ops/moe_ffn/moe_ffn_fp8 whose products are passes of their own: every recipe, on every
// device.
#pragma once

#include <memory>

#include "troupe/ops/moe_ffn/ffn_backend.h"
#include "troupe/ops/moe_ffn/moe_ffn_fp8.h"

namespace troupe {

struct Fp8Passes {
  bool bytes;   // products on tensor cores in 8 bits; false: on the kernels of x's type
  bool counts;  // a gradient follows, or this is backward: recipe delayed counts the values
};
std::unique_ptr<FfnBackend> fp8_passes_ffn(const FfnCall& call, const FfnOptions& options,
                                           const Fp8Options& fp8, const Fp8Passes& passes);

}  // namespace troupe
