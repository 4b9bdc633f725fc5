// The folder of an adapter as PEFT reads it: adapter_config.json and adapter_model.safetensors.
//
// A matrix of theirs is one of target_modules, with lora_A.weight [r, in] and lora_B.weight [out,
// r] under its module's name. The router and the experts' fused tensors are parameters, named in
// target_parameters; where a module has several, PEFT wraps one around the other, and the factors
// of the inner ones stand under `base_layer`. Of E experts' factors lora_A is [E r, .], expert by
// expert, and lora_B [., r E], whose column k E + e is column k of expert e. PEFT takes experts'
// tensors [E, out, in] for [E, in, out] up to 0.18 (lora_A is then B transposed), and from 0.19 as
// they are; tensors that are [E, in, out] are written alike in both.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "apps/models/run_adapters.h"
#include "troupe/core/file/publish.h"
#include "troupe/core/text/text.h"

namespace troupe {

enum class PeftVersion { k0_18, k0_19 };  // and those before, and behind
constexpr auto names_of(PeftVersion) {
  return std::array{Named{"0.18", PeftVersion::k0_18}, Named{"0.19", PeftVersion::k0_19}};
}

struct PeftFolder {
  std::string folder;
  std::string base;  // the base model's folder or name on the hub; empty: not named
  PeftVersion version = PeftVersion::k0_19;
  bool force = false;  // replaces the folder, if it is there
};

struct PeftWritten {
  int64_t tensors = 0;
  std::vector<std::string> modules = {}, parameters = {};  // the targets, layers left out
};

// Writes the adapters beside a model of `config`, in f32. The folder appears whole or not at all.
// E2005 where a factor has no form that PEFT knows: matrices that the family keeps transposed or
// joined with others, and weights that an import multiplied (HfConfig::factors).
PeftWritten write_peft(const RunAdapters& adapters, const HfConfig& config, const PeftFolder& to,
                       Fs& fs);

}  // namespace troupe
