// What a MoE layer reports of one microbatch (rules A8, R15). What it says about the layer's health is
// train/observe/health.h's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe {

// As computed: tensors on the device, nothing copied.
struct MoeStats {
  at::Tensor counts_E;        // int64, as chosen, before dropping
  at::Tensor dropped = {};    // int64 scalar; undefined: nothing can drop
  at::Tensor score_sum = {};  // mean over tokens of the chosen scores' sum (R6); may be undefined
  bool forced = false;        // R3
  // int64 [1]: groups of kept activations that fp16 scales cannot hold (Q2); undefined: none is
  // quantized
  at::Tensor saturated = {};
  int64_t microbatches = 1;  // that were added up

  // Adds another microbatch or rank of the same layer; score_sum becomes the mean over them.
  MoeStats& operator+=(const MoeStats& other);
};

// The choices of one MoE layer, for a trace or a replay (R15); layers of MTP modules are numbered
// after the blocks.
struct LayerChoices {
  int64_t layer;
  at::Tensor ids_TK, logits_TE;  // int32; what they were made of
  int64_t microbatch = 0;        // of this rank's in the step: the executor counts them
};

}  // namespace troupe
