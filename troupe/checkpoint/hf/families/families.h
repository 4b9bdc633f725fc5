// Families of models on the hub, a record each: what they are called, which models they can hold,
// their config.json, and which of their tensors is which of ours. One file a family; the list is in
// families.cpp.
//
// Names are plain data, over which import and export stream.
//
// Every entry of ours is a matrix of `rows` x `columns` (the last dimension is the columns, those
// before it the rows; a vector is one column). It is made of pieces, runs of its rows, each an
// affine picture of one tensor of theirs, in elements of its row-major data:
//
//   ours[piece.row + r, c] =
//       theirs.data[piece.offset + r * piece.row_stride + c * piece.column_stride]
//   for 0 <= r < piece.rows, 0 <= c < columns
//
// That says split and joined projections, transposed and interleaved experts and one tensor for all
// experts. Over the whole table each element of ours and each of theirs is named exactly once; of a
// padded vocabulary the table holds the true rows, and `shape` says how many.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/nn/config/config.h"

namespace troupe {

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
  double factor = 1, offset = 0;         // ours = factor * theirs + offset, in f32
};

// What a family's class computes: a model that differs in any of it is refused.
struct HfForm {
  NormForm norm = NormForm::kRmsRounded;  // kRms is taken for kRmsRounded, and the reverse
  bool moe = true;                        // has experts
  bool gpt2 = false;          // learned positions, gelu, biases of everything, norms too
  bool mixed_layers = false;  // dense layers beside those with experts
  bool mla = false;           // and interleaved rotary pairs
  bool interleaved = false;   // these without it
  std::string_view block = PreNormBlock::kKind;
  bool mtp = false;
  bool delta = false;  // may have linear attention, and attention has an output gate
  bool sinks = false;
  bool window = false;        // may have one
  bool clip_qkv = false;      // may have it
  bool partial_rope = false;  // may turn a part of each head alone
  QkNorm qk_norm = QkNorm::kNone;
  bool qk_norm_or_none = false;
  bool qkv_bias = false, ffn_bias = false;  // may have them; attention's output with the former,
  bool qkv_bias_alone = false;              // or never
  bool biased_clamped_experts = false;      // gpt-oss: quick_gelu, clamped, with biases
  bool shared = false;                      // may have shared experts,
  bool gated_shared = false;                // with a sigmoid gate, as it always has them
  bool shared_width = false;                // of any width; else a multiple of the routed experts'
  std::string_view router = TopkSoftmaxRouting::kKind;
  bool sums_to_one = false;         // a token's weights always do
  bool scaled_and_limited = false;  // may scale a token's weights and choose among groups
  bool plain_bias = false;          // of sigmoid_bias: neither scales nor limits
  IndependentScore score = IndependentScore::kSigmoid;  // of sigmoid_bias
};

struct ConfigFields;

struct HfFamily {
  std::string_view model_type, architecture;  // of config.json
  HfForm form;
  void (*read_or_write)(ConfigFields& fields);  // config.json, in one direction (config_fields.h)
  std::vector<HfTensor> (*names)(const ModelConfig& config, bool fused);
  bool (*skippable)(const ModelConfig& config, std::string_view name) = nullptr;
  std::string_view base_prefix = {};  // that files of the model without its head leave out
};

std::string hf_model_types();                                 // of all: "llama, mixtral, .."
const HfFamily* find_hf_family(std::string_view model_type);  // also by another name; null: none
// What a known family needs that there is no operator for; empty: nothing is known of it.
std::string_view hf_missing_operator(std::string_view model_type);
// The first family that can hold the config, to export a model that was not imported; null: none.
const HfFamily* hf_family_of(const ModelConfig& config);

// The whole table for a model of that family: ours in the order of units. Throws, with the key at
// fault, where the family cannot hold the config. `fused`: names as transformers 5 holds experts in
// memory, where the family's files keep them apart.
std::vector<HfTensor> hf_names(const HfFamily& family, const ModelConfig& config,
                               bool fused = false);

// Tensors of theirs that may be there and hold nothing to import: "..rotary_emb.inv_freq", the MTP
// layer where the config has none, `lm_head.weight` of a tied head.
bool hf_skippable(const HfFamily& family, const ModelConfig& config, std::string_view name);

}  // namespace troupe
