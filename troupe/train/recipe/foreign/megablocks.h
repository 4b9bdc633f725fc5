// The settings of a MegaBlocks layer, from its own Arguments or LLM-Foundry's ffn_config, into a
// draft.
#pragma once

#include <string>

#include "troupe/train/recipe/foreign/tree.h"

namespace troupe {

// What the two have otherwise.
struct MegaBlocksForm {
  std::string root;      // of the names: "" or "model.ffn_config."
  bool capacity = true;  // false: dropless whatever moe_capacity_factor says
  bool loss = true;      // false: no balance loss (torch_dmoe)
  std::string hidden;    // of an expert, where the settings do not say it
  Origin hidden_from;
  std::string gelu = "gelu_tanh";  // what the default activation is
  bool bias = true;                // where `bias` is not among the settings
};
void convert_moe(Tree& tree, const MegaBlocksForm& form, Draft& draft);

// A call Arguments(hidden_size=1024, ...) in a Python text, or YAML or JSON of the same names.
void convert_megablocks(const std::string& text, const std::string& file, Draft& draft);

}  // namespace troupe
