// A model's weights as one GGUF file.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "troupe/checkpoint/gguf/gguf_model.h"
#include "troupe/checkpoint/hf/hf_weights.h"
#include "troupe/core/file/publish.h"
#include "troupe/core/text/text.h"

namespace troupe {

constexpr auto names_of(GgufType) {
  return std::array{Named{"f32", GgufType::kF32}, Named{"bf16", GgufType::kBF16},
                    Named{"q8_0", GgufType::kQ8_0}};
}

struct GgufOptions {
  GgufType type = GgufType::kBF16;  // of matrices; norms, biases and routers are f32
  std::string name = "";            // general.name
  std::vector<GgufField> vocabulary = {};
  bool force = false;  // replaces the file, if it is there
};

// Writes the file tensor by tensor, part by part: nothing larger than one tensor of ours is held.
// It appears whole or not at all. Rows of a padded vocabulary are left out. E4008 for a matrix whose
// rows q8_0 cannot cut into blocks of 32, before anything is written. Returns how many tensors it
// has.
int64_t write_gguf(const GgufModel& model, const TensorOf& tensor_of, const std::string& path,
                   const GgufOptions& options, Fs& fs);

}  // namespace troupe
