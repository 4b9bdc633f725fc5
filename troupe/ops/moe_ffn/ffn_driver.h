// Forward, backward and the two halves of a backward over the five calls of a path
// (ffn_backend.h).
#pragma once

#include "troupe/ops/moe_ffn/ffn_backend.h"

namespace troupe {

struct FfnForward {
  at::Tensor out;     // [T, D]; undefined with hidden_only
  at::Tensor hidden;  // [R, 2F] or [R, F], in x's type
};
FfnForward ffn_forward(const FfnBackend& path, bool hidden_only = false);

// With of.overwrite hidden is left as its own gradient on the CPU, without memory on CUDA
// (give_back.h).
FfnGradTensors ffn_backward(const FfnBackend& path, const FfnHiddenGrad& of);

// The same backward in halves, with the same bits. The first computes the gradients of x and of the
// scores; the second those of the weights, from what the first kept. The first takes all needs.
struct FfnRowsHalf {
  FfnGradTensors grads;
  FfnBetween between;
};
FfnRowsHalf ffn_rows_half(const FfnBackend& path, FfnHiddenGrad of);
FfnGradTensors ffn_weights_half(const FfnBackend& path, FfnBetween between, const FfnNeeds& needs);

}  // namespace troupe
