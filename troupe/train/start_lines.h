// What a run says of itself before its first step.
#pragma once

#include <string>

#include "troupe/nn/models/config.h"

namespace troupe {

// What keeps the experts evenly loaded: "balance: aux_loss 0.01, z_loss 0.001". Where nothing does,
// it says so and names the knob. Empty for a dense model.
std::string balance_line(const ModelConfig& model);

}  // namespace troupe
