// Which module of transformers computes what a module of ours does.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "troupe/checkpoint/hf/families/families.h"

namespace troupe {

// From what our parameters' names begin with to the name of their module: "layers.3.norm1" to
// "model.layers.3.input_layernorm", "layers.3.moe" to "model.layers.3.mlp". `table` names joined
// experts (hf_names(.., fused)), as transformers 5 has modules. Theirs is the innermost module that
// has all tensors of ours; a router's is the one with its weight. "head" is "lm_head".
std::map<std::string, std::string> hf_modules(const std::vector<HfTensor>& table);

}  // namespace troupe
