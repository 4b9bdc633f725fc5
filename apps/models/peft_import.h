// The folder of an adapter as PEFT writes it (peft_folder.h), read as adapters of a model of ours.
//
// Ours have one A for all rows of a matrix. Where theirs is several matrices (gate_proj and up_proj)
// with an A for each, ours has the rows of all of them, m r, and B zeros between: rank is then m r
// everywhere, and alpha m alpha (rslora: sqrt(m) alpha), which leaves the scale as it is.
//
// Magnitudes of DoRA are kept here as what they have above the norm of the base's rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "troupe/checkpoint/hf/hf_config.h"
#include "troupe/checkpoint/hf/hf_weights.h"
#include "troupe/nn/parts/lora.h"

namespace troupe {

struct PeftAdapterRead {
  ModelLora lora;
  // f32, "layers.0.attention.q.lora_a", an expert's by itself.
  std::map<std::string, at::Tensor> factors = {};
  int64_t tensors = 0;  // of theirs
  int64_t added = 0;    // matrices of the targets that theirs leaves out: they begin without effect
  std::vector<std::string> notes = {};
};

// The model with a router whose bias stays, as adapters need it.
ModelConfig with_still_router(ModelConfig model);

// Beside a model of `config`, which has no adapters; `weights`: its tensors. E4005 names the tensors
// that have no place.
PeftAdapterRead read_peft(const std::string& folder, const HfConfig& config,
                          const TensorOf& weights);

}  // namespace troupe
