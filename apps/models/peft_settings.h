// adapter_config.json, as PEFT writes it.
#pragma once

#include <string>
#include <vector>

#include "troupe/nn/parts/lora.h"

namespace troupe {

struct PeftSettings {
  LoraConfig factors;
  bool turned = false;  // experts' square factors are those of PEFT 0.18 and before
  std::vector<std::string> parameters = {};  // target_parameters
};

// E4008 for a file that is none of a LoRA adapter, and for each setting that adapters here do not
// have and that changes what is computed (modules_to_save, bias, ..), by its name: a key
// that is not known has to be off.
PeftSettings read_peft_settings(const std::string& folder);

}  // namespace troupe
