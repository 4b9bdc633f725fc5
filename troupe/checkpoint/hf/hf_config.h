// config.json of a model hub to a ModelConfig and back. Both spellings are read, transformers 4's
// (rope_theta, rope_scaling, torch_dtype) and 5's (rope_parameters, dtype); 4's is written, which
// both read. A key that is missing has the class's default, not the hub's usual value. What would
// change the mathematics and is not supported is E4008, with key and value; other unknown keys are
// told and kept for export.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "troupe/nn/models/hf_names.h"

namespace troupe {

enum class HfQuantization { kNone, kFp8Blocks, kMxfp4 };

struct HfConfig {
  HfFamily family = HfFamily::kLlama;
  ModelConfig model;
  std::string dtype = "bfloat16";
  HfQuantization quantization = HfQuantization::kNone;
  int64_t block_rows = 128, block_columns = 128;  // of FP8
  // Names that are kept and not interpreted: JSON objects. `passed` are known to be harmless.
  std::string passed = "{}", unknown = "{}";
  std::vector<std::string> notes = {};  // lines for the log
};

// Throws E4008; E4003 for text that is no JSON object. `file` is told as the place.
HfConfig parse_hf_config(const std::string& text, const std::string& file);
HfConfig read_hf_config(const std::string& folder);

std::string to_json(const HfConfig& config);  // config.json, in the old spelling

// For a model that was never imported; throws E4008 where no family can hold it.
HfConfig hf_config_of(const ModelConfig& model);

}  // namespace troupe
