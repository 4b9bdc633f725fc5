// Converts a Hugging Face config.json to a ModelConfig and back. Reads the keys of transformers 4
// (rope_theta, rope_scaling, torch_dtype) and 5 (rope_parameters, dtype); writes those of 4, which
// both versions read. A missing key takes the default of transformers' config class. A key that
// would change the result and is not supported throws E4008 with key and value; any other unknown
// key is logged, and written again at export.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "troupe/checkpoint/hf/families/families.h"

namespace troupe {

enum class HfQuantization { kNone, kFp8Blocks, kMxfp4 };

struct HfConfig {
  const HfFamily* family = nullptr;
  ModelConfig model;
  std::string dtype = "bfloat16";
  HfQuantization quantization = HfQuantization::kNone;
  int64_t block_rows = 128, block_columns = 128;  // FP8: the elements that share a scale
  // JSON objects of keys that are kept for export and not interpreted. `passed`: known, without
  // effect on the result.
  std::string passed = "{}", unknown = "{}";
  std::vector<std::string> notes = {};  // lines for the log
  // Factors that the model has and ours puts into weights: of all of ours whose name holds the text.
  std::vector<std::pair<std::string, double>> factors = {};
};

// Throws E4008; E4003 if the text is not a JSON object. `file` is the place in messages.
HfConfig parse_hf_config(const std::string& text, const std::string& file);
HfConfig read_hf_config(const std::string& folder);

std::string to_json(const HfConfig& config);  // config.json, in the old spelling

// The config of a model that was trained here; throws E4008 if no family can represent it.
HfConfig hf_config_of(const ModelConfig& model);

}  // namespace troupe
