// Dropout that does not depend on the layout: what is dropped is a function of seed, step, layer,
// the token's global index and the column (core/number/rng.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "troupe/nn/parts/context.h"

namespace troupe {

// What is dropped in a layer; those behind kWeights are the inputs of adapters (nn/parts/lora.h).
enum class DropPlace {
  kEmbedding,
  kAttention,
  kFfn,
  kWeights,
  kQuery,
  kKey,
  kValue,
  kOut,
  kQueryDown,
  kQueryUp,
  kLatentDown,
  kLatentUp,
  kFfnUp,
  kFfnDown,
  kSharedUp,
  kSharedDown,
  kRouter,
  kExpertsUp,
  kExpertsDown,
};

// x / (1 - p) where it is kept, which happens with probability 1 - p, else 0; x itself unless
// training and p > 0. x [.., D], whose rows are tokens context.index_T, or those from
// context.first_token on.
at::Tensor dropout(const at::Tensor& x, double p, DropPlace place, const Context& context);

}  // namespace troupe
