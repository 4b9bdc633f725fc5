// Which tensors of a Hugging Face folder are which of ours, as plain data: one file a family in
// nn/models/hf/. Import and export stream over this table; it neither reads nor allocates.
//
// Every entry of ours is a matrix of `rows` x `columns` (the last dimension is the columns, those
// before it the rows; a vector is one column). It is made of pieces, runs of its rows, each an
// affine picture of one tensor of theirs, in elements of its row-major data:
//
//   ours[piece.row + r, c] = theirs.data[piece.offset + r * piece.row_stride + c *
//   piece.column_stride]
//                            for 0 <= r < piece.rows, 0 <= c < columns
//
// That says split and joined projections, transposed and interleaved experts and one tensor for all
// experts. Over the whole table each element of ours and each of theirs is named exactly once; of a
// padded vocabulary the table holds the true rows, and `shape` says how many.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/nn/models/config.h"

namespace troupe {

enum class HfFamily {
  kLlama,
  kMixtral,
  kQwen3Moe,
  kOlmoe,
  kDbrx,
  kDeepseekV2,
  kDeepseekV3,
  kGptOss
};
constexpr auto names_of(HfFamily) {  // model_type of config.json
  return std::array{Named{"llama", HfFamily::kLlama},
                    Named{"mixtral", HfFamily::kMixtral},
                    Named{"qwen3_moe", HfFamily::kQwen3Moe},
                    Named{"olmoe", HfFamily::kOlmoe},
                    Named{"dbrx", HfFamily::kDbrx},
                    Named{"deepseek_v2", HfFamily::kDeepseekV2},
                    Named{"deepseek_v3", HfFamily::kDeepseekV3},
                    Named{"gpt_oss", HfFamily::kGptOss}};
}

struct HfPiece {
  std::string name;            // theirs
  std::vector<int64_t> shape;  // of the whole tensor of theirs
  int64_t row = 0, rows = 0;   // of ours
  int64_t offset = 0, row_stride = 0, column_stride = 1;
};

struct HfTensor {
  std::string name;  // ours; an expert's part is named apart ("layers.3.moe.experts.17.w1")
  std::vector<int64_t> shape;  // ours, the global one
  int64_t rows = 0, columns = 1;
  std::vector<HfPiece> pieces;
  std::vector<std::string> copies = {};  // theirs that repeat this tensor whole: written on export,
                                         // compared on import
  bool fp32 = false;                     // stays f32 whatever type is asked for
};

// The whole table for a model of that family: ours in the order of units. Throws, with the key at
// fault, where the family cannot hold the config. `fused`: names as transformers 5 holds experts in
// memory, where the family's files keep them apart.
std::vector<HfTensor> hf_names(HfFamily family, const ModelConfig& config, bool fused = false);

// Tensors of theirs that may be there and hold nothing to import: "..rotary_emb.inv_freq", the MTP
// layer where the config has none, `lm_head.weight` of a tied head.
bool hf_skippable(HfFamily family, const ModelConfig& config, std::string_view name);

// The family whose form the config has, to export a model that was not imported; absent: none.
std::optional<HfFamily> hf_family_of(const ModelConfig& config);

}  // namespace troupe
