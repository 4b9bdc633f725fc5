// What a run says of itself before its first step.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

#include "troupe/nn/models/config.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {

// What keeps the experts evenly loaded: "balance: aux_loss 0.01, z_loss 0.001". Where nothing does,
// it says so and names the knob. Empty for a dense model.
std::string balance_line(const ModelConfig& model);

// Whose attention runs on a GPU, and why not cuDNN's where it is not. Empty on a CPU, and for a
// model without attention. longest: of its segments, in tokens.
std::string attention_line(const ModelConfig& model, Precision precision, int64_t longest,
                           const c10::Device& device);

// Where a router takes later tokens into account (expert_choice), its losses and texts are not
// those of a causal model: what to warn of wherever they are told. Empty where none does.
std::string causality_line(const ModelConfig& model);

// Of a batch in which every target is masked: it moves no weight, and looks like a loss of 0.
std::string masked_line(int64_t step);

}  // namespace troupe
