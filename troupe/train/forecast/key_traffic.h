// What context parallelism adds to a layer's memory and traffic: keys and values of other ranks'
// tokens (rules CX6, CX9).
#pragma once

#include "troupe/train/recipe/recipe.h"

namespace troupe {

// Elements that ranks exchange per token: keys and values of the rank's heads, or latents.
int64_t exchanged_width(const ModelConfig& model, const LayerConfig& layer, int64_t tensor);

// Tokens of other ranks, per microbatch, whose keys a rank's queries see, on the rank with most of
// them: all other tokens or, with a window, those before each of its two chunks. Documents make
// them fewer, but a recipe does not say how long documents are. 0: one context rank, or no
// attention.
double keys_from_others(const Recipe& recipe, int64_t micro_batch, const LayerConfig& layer);

// Slowdown of ring attention's core on a GPU, where its products are in f32
// (ops/attention/attention_part_aten.h) and the machine's attention rate is that of bf16. By the
// data sheet of an H100 f32 has a fifteenth of bf16's rate, and large products reach about twice as
// much of their peak as attention does. Computed, not measured.
inline constexpr double kRingCore = 7;

// Elements that a rank sends in forward, per microbatch: keys and values for other ranks' queries;
// with context_method heads its tokens' rows of other ranks' heads and, of the result, other ranks'
// tokens of its heads. Backward sends twice as much for keys, as much for heads.
double numbers_exchanged(const Recipe& recipe, int64_t micro_batch, const LayerConfig& layer,
                         int64_t tensor);

// Latent attention: columns of keys and values, of the rank's heads, that are computed from each
// exchanged token; 0 otherwise.
int64_t made_of_latents(const ModelConfig& model, const LayerConfig& layer, int64_t tensor);

}  // namespace troupe
