// What a decoder model is: one config for all families, from GPT-2's form to DeepSeek-V3's.
//
//   model: {layers: 16, width: 2048, heads: 16, vocab: 50304, moe: {experts: 64, hidden: 1024}}
//   model: {preset: mixtral-8x7b, layers: 4}       a published model, and what differs from it
//
// Block i:   h = h + attention(norm(h)),  h = h + ffn(norm(h)); ffn is the MoE layer where
// is_moe_layer(i), else dense. A thing set to 0 or absent follows from others as its line says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "troupe/core/config/counts.h"
#include "troupe/nn/moe_layer.h"
#include "troupe/nn/norm_module.h"
#include "troupe/nn/rope.h"

namespace troupe {

// Multi-head latent attention (DeepSeek-V2, -V3): keys and values of all heads from one vector.
struct MlaConfig {
  int64_t q_rank = 0;  // 0: queries straight from the width
  int64_t kv_rank = 512;
  int64_t nope_dim = 128, rope_dim = 64, value_dim = 128;  // of a head
  double eps = 1e-6;                                       // of the two latent norms

  static void visit(auto& c, auto&& f) {
    f("q_rank", c.q_rank);
    f("kv_rank", c.kv_rank);
    f("nope_dim", c.nope_dim);
    f("rope_dim", c.rope_dim);
    f("value_dim", c.value_dim);
    f("eps", c.eps);
  }
};

// Multi-token prediction: module d = 1 .. depth predicts token i + d + 1 at i.
struct MtpConfig {
  int64_t depth = 0;
  double weight = 0.1;  // the modules' losses: weight / depth times their sum

  static void visit(auto& c, auto&& f) {
    f("depth", c.depth);
    f("weight", c.weight);
  }
};

enum class PositionForm { kRope, kLearned, kNone };
constexpr auto names_of(PositionForm) {
  return std::array{Named{"rope", PositionForm::kRope}, Named{"learned", PositionForm::kLearned},
                    Named{"none", PositionForm::kNone}};
}
enum class QkNorm { kNone, kHead, kWhole };  // each head alone, or the whole projection (OLMoE)
constexpr auto names_of(QkNorm) {
  return std::array{Named{"none", QkNorm::kNone}, Named{"head", QkNorm::kHead},
                    Named{"whole", QkNorm::kWhole}};
}
// The dense feed-forward's activation: the last three have one product, the others two.
enum class FfnAct { kSwiglu, kGeglu, kGegluTanh, kReglu, kGelu, kGeluTanh, kRelu2, kSilu, kRelu };
constexpr auto names_of(FfnAct) {
  return std::array{Named{"swiglu", FfnAct::kSwiglu},
                    Named{"geglu", FfnAct::kGeglu},
                    Named{"geglu_tanh", FfnAct::kGegluTanh},
                    Named{"reglu", FfnAct::kReglu},
                    Named{"gelu", FfnAct::kGelu},
                    Named{"gelu_tanh", FfnAct::kGeluTanh},
                    Named{"relu2", FfnAct::kRelu2},
                    Named{"silu", FfnAct::kSilu},
                    Named{"relu", FfnAct::kRelu}};
}

// What some layers have otherwise than the rest.
struct LayerOverride {
  std::vector<int64_t> layers = {};
  std::optional<int64_t> heads, kv_heads, ffn, window, experts, top_k, hidden;
  bool attention = true;  // false: the block is its feed-forward alone

  static void visit(auto& c, auto&& f) {
    f("layers", c.layers);
    f("heads", c.heads);
    f("kv_heads", c.kv_heads);
    f("ffn", c.ffn);
    f("window", c.window);
    f("experts", c.experts);  // 0: a dense layer
    f("top_k", c.top_k);
    f("hidden", c.hidden);
    f("attention", c.attention);
  }
};

struct ModelConfig {
  std::string preset = "";  // presets.h; read first: all other fields start from it
  int64_t layers = 12;
  int64_t width = 768;    // D
  int64_t heads = 12;     // H
  int64_t kv_heads = 0;   // 0: heads
  int64_t head_dim = 0;   // 0: width / heads
  int64_t ffn = 0;        // width of the dense feed-forward; 0: no layer is dense
  int64_t vocab = 50304;  // V
  int64_t vocab_pad = 1;  // tables have rows for the next multiple; those beyond V are never used
  NormConfig norm;
  bool bias = false;                                 // of the products in dense parts
  std::optional<bool> qkv_bias, out_bias, ffn_bias;  // absent: `bias`
  QkNorm qk_norm = QkNorm::kNone;
  std::optional<double> clip_qkv;  // q, k, v are clamped to +-clip_qkv before the rotation
  FfnAct act = FfnAct::kSwiglu;    // of dense layers; experts have their own in moe
  double dropout = 0;              // of the embedding and of what blocks add to h
  double attn_dropout = 0;         // of attention's weights
  PositionForm positions = PositionForm::kRope;
  int64_t max_positions = 4096;  // rows of the learned table, and of the rotary ones
  RopeConfig rope;
  bool tie_embeddings = false;
  std::optional<double> init_std;   // of all matrices, also experts and routers; absent: 0.02,
                                    // and what moe says
  bool scaled_init = true;          // products into h start with std / sqrt(2 layers)
  int64_t window = 0;               // key j is seen from i where i - window < j <= i; 0: all j <= i
  std::string window_layers = "1";  // which layers have it, a pattern (moe_pattern.h)
  bool sinks = false;               // one more logit a head in the softmax's sum, without a value
  std::optional<MlaConfig> mla;
  MtpConfig mtp;
  MoeConfig moe;            // experts 0: a dense model
  int64_t first_dense = 0;  // the first layers have no MoE, whatever moe.layers says
  double z_loss = 0;        // of the head: z_loss lse^2 a token
  std::vector<LayerOverride> overrides = {};  // the later one wins

  static void visit(auto& c, auto&& f) {
    f("preset", c.preset);
    f("layers", c.layers);
    f("width", c.width);
    f("heads", c.heads);
    f("kv_heads", c.kv_heads);
    f("head_dim", c.head_dim);
    f("ffn", c.ffn);
    f("vocab", c.vocab);
    f("vocab_pad", c.vocab_pad);
    f("norm", c.norm);
    f("bias", c.bias);
    f("qkv_bias", c.qkv_bias);
    f("out_bias", c.out_bias);
    f("ffn_bias", c.ffn_bias);
    f("qk_norm", c.qk_norm);
    f("clip_qkv", c.clip_qkv);
    f("act", c.act);
    f("dropout", c.dropout);
    f("attn_dropout", c.attn_dropout);
    f("positions", c.positions);
    f("max_positions", c.max_positions);
    f("rope", c.rope);
    f("tie_embeddings", c.tie_embeddings);
    f("init_std", c.init_std);
    f("scaled_init", c.scaled_init);
    f("window", c.window);
    f("window_layers", c.window_layers);
    f("sinks", c.sinks);
    f("mla", c.mla);
    f("mtp", c.mtp);
    f("moe", c.moe);
    f("first_dense", c.first_dense);
    f("z_loss", c.z_loss);
    f("overrides", c.overrides);
  }
  // core/config/config_read.h: false if there is no such preset, else all fields are the preset's.
  bool select_preset(std::string_view name);
  static std::vector<std::string_view> presets();
};

// The most that counts of a model may be: several times what any published model has.
inline constexpr CountBound kModelBounds[] = {
    {"layers", 1024},           {"depth", 64},
    {"width", 1 << 20},         {"heads", 1 << 16},
    {"kv_heads", 1 << 16},      {"head_dim", 1 << 16},
    {"ffn", 1 << 24},           {"hidden", 1 << 24},
    {"vocab", 1 << 30},         {"vocab_pad", 1 << 20},
    {"experts", 1 << 16},       {"top_k", 1 << 16},
    {"groups", 1 << 16},        {"keep", 1 << 16},
    {"latent", 1 << 20},        {"table_layers", 1024},
    {"rank", 1 << 20},          {"q_rank", 1 << 20},
    {"kv_rank", 1 << 20},       {"nope_dim", 1 << 16},
    {"rope_dim", 1 << 16},      {"value_dim", 1 << 16},
    {"max_positions", 1 << 30},
};

// All that is wrong, a line each, before anything is made (Code::kBadValue).
void validate(const ModelConfig& config);

// One block's sizes, with overrides applied: what modules are built from and costs are counted by.
struct LayerConfig {
  int64_t index = 0;
  bool attention = true;
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t window = 0;
  int64_t ffn = 0;                    // of a dense layer
  std::optional<MoeConfig> moe = {};  // absent: dense
};
LayerConfig layer_config(const ModelConfig& config,
                         int64_t layer);            // an MTP block: layer >= layers
int64_t num_moe_layers(const ModelConfig& config);  // without MTP's
// Of the MoE layer in that block; an MTP block's comes behind all others, so that no table of the
// first layers (R14) is its router. group_ranks: |G|, ranks that share a microbatch.
MoeShape moe_shape(const ModelConfig& config, const LayerConfig& layer, int64_t group_ranks = 1);
int64_t padded_vocab(const ModelConfig& config);

}  // namespace troupe
