// What each module of a model computes of some tokens, to compare two programs module by module.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace troupe {

class Model;  // nn/model/model.h

struct ModuleOutput {
  std::string name;  // what its parameters' names begin with: "layers.3.norm1"
  at::Tensor y;      // [T, ..], a copy; of a router its scores before the softmax, [T, E]
};

// The outputs of a forward pass without training and of the logits, in the order of computation: of
// embed.tokens (without positions), each layer's norms, attention, moe.router, moe or ffn, and the
// layer itself, head.norm and head, whose output is the logits. A router without scores (table) is
// left out. The whole model must be on this rank.
std::vector<ModuleOutput> module_outputs(Model& model, const at::Tensor& ids_BS);

}  // namespace troupe
