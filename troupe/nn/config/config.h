// What a decoder model is: one config for all families, from GPT-2's form to DeepSeek-V3's.
//
//   model: {layers: 16, width: 2048, heads: 16, vocab: 50304, moe: {experts: 64, hidden: 1024}}
//   model: {preset: mixtral-8x7b, layers: 4}       a published model, and what differs from it
//
// Block i has attention and a feed-forward, which is the MoE layer where is_moe_layer(i), else
// dense; how they follow each other is the block's kind (nn/config/block_kinds.h). A thing set to 0 or
// absent follows from others as its line says.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "troupe/core/config/counts.h"
#include "troupe/nn/config/block_kinds.h"
#include "troupe/nn/config/delta_config.h"
#include "troupe/nn/moe/moe_layer.h"
#include "troupe/nn/parts/lora.h"
#include "troupe/nn/parts/norm_module.h"
#include "troupe/nn/parts/rope.h"

namespace troupe {

// Multi-head latent attention (DeepSeek-V2, -V3): keys and values of all heads from one vector.
struct MlaConfig {
  int64_t q_rank = 0;  // 0: queries straight from the width
  int64_t kv_rank = 512;
  int64_t nope_dim = 128, rope_dim = 64, value_dim = 128;  // of a head
  double eps = 1e-6;                                       // of the two latent norms

  static void visit(auto& c, auto&& f) {
    f("q_rank", c.q_rank, "Rank of the query latent; 0: none.");
    f("kv_rank", c.kv_rank, "Rank of the key-value latent.");
    f("nope_dim", c.nope_dim, "Head dimensions without rotary position.");
    f("rope_dim", c.rope_dim, "Rotary dimensions per head (even).");
    f("value_dim", c.value_dim, "Value dimensions per head.");
    f("eps", c.eps, "Epsilon of the latents' norms.");
  }
};

// Multi-token prediction: module d = 1 .. depth predicts token i + d + 1 at i.
struct MtpConfig {
  int64_t depth = 0;
  double weight = 0.1;  // the modules' losses: weight / depth times their sum

  static void visit(auto& c, auto&& f) {
    f("depth", c.depth, "Number of prediction modules, each one token further ahead; 0: off.");
    f("weight", c.weight, "Weight of their mean loss.");
  }
};

enum class PositionForm { kRope, kLearned, kNone };
constexpr auto names_of(PositionForm) {
  return std::array{Named{"rope", PositionForm::kRope}, Named{"learned", PositionForm::kLearned},
                    Named{"none", PositionForm::kNone}};
}
// Norm of each head, before or after (HunYuan) the rotation, or of the whole projection (OLMoE).
enum class QkNorm { kNone, kHead, kHeadTurned, kWhole };
constexpr auto names_of(QkNorm) {
  return std::array{Named{"none", QkNorm::kNone}, Named{"head", QkNorm::kHead},
                    Named{"head_turned", QkNorm::kHeadTurned}, Named{"whole", QkNorm::kWhole}};
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
    f("layers", c.layers, "Layer numbers, from 0.");
    f("heads", c.heads, "Query heads of these layers.");
    f("kv_heads", c.kv_heads, "Key and value heads of these layers.");
    f("ffn", c.ffn, "Hidden width of their dense feed-forward.");
    f("window", c.window, "Their attention window; 0: full causal attention.");
    f("experts", c.experts, "Their experts; 0: a dense layer.");  // 0: a dense layer
    f("top_k", c.top_k, "Experts per token in these layers.");
    f("hidden", c.hidden, "Hidden width of their experts.");
    f("attention", c.attention, "false: these blocks have no attention.");
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
  bool attn_gate = false;           // attention's output times a sigmoid of its input
  std::optional<MlaConfig> mla;
  std::optional<DeltaConfig> delta;
  BlockConfig block;
  MtpConfig mtp;
  MoeConfig moe;  // experts 0: a dense model
  ModelLora lora;
  int64_t first_dense = 0;  // the first layers have no MoE, whatever moe.layers says
  double z_loss = 0;        // of the head: z_loss lse^2 a token
  std::vector<LayerOverride> overrides = {};  // the later one wins

  static void visit(auto& c, auto&& f) {
    f("preset", c.preset,
      "Published model whose values are the defaults of all other fields, such as mixtral-8x7b.");
    f("layers", c.layers, "Number of blocks (1 or more).");
    f("width", c.width, "Model width D, the residual stream's.");
    f("heads", c.heads, "Query heads; must divide the width unless head_dim is set.");
    f("kv_heads", c.kv_heads, "Key and value heads, a divisor of heads; 0: equal to heads.");
    f("head_dim", c.head_dim, "Head dimension; 0: width / heads.");
    f("ffn", c.ffn, "Hidden width of dense feed-forward layers; 0: no layer is dense.");
    f("vocab", c.vocab, "Vocabulary size; at least the tokenizer's.");
    f("vocab_pad", c.vocab_pad,
      "Rounds the rows of the embedding tables up to a multiple; padding rows are unused.");
    f("norm", c.norm, "Norm before attention, feed-forward and head.");
    f("bias", c.bias, "Biases of attention and dense feed-forward projections.");
    f("qkv_bias", c.qkv_bias, "Biases of the query, key and value projections; null: as bias.");
    f("out_bias", c.out_bias, "Bias of the attention output projection; null: as bias.");
    f("ffn_bias", c.ffn_bias, "Biases of dense feed-forward projections; null: as bias.");
    f("qk_norm", c.qk_norm,
      "Norm of queries and keys: per head, per head after the rotation (HunYuan), or over the "
      "whole "
      "projection (OLMoE).");
    f("clip_qkv", c.clip_qkv, "Clamp of queries, keys and values to [-x, x]; null: off.");
    f("act", c.act, "Activation of dense feed-forward layers; experts use model.moe.activation.");
    f("dropout", c.dropout, "Dropout of the embedding and of each block's output (0 to below 1).");
    f("attn_dropout", c.attn_dropout, "Dropout of attention weights (0 to below 1).");
    f("positions", c.positions, "Position encoding: rope, learned (a table) or none.");
    f("max_positions", c.max_positions,
      "Longest sequence in tokens: rows of the position or rotary tables.");
    f("rope", c.rope, "Rotary position embedding.");
    f("tie_embeddings", c.tie_embeddings, "Shares the embedding table with the output head.");
    f("init_std", c.init_std,
      "Standard deviation of the initial weights of all matrices; null: 0.02.");
    f("scaled_init", c.scaled_init,
      "Scales the initial std of projections into the residual stream by 1 / sqrt(2 layers).");
    f("window", c.window,
      "Sliding window attention: keys per query, itself included; 0: full causal attention.");
    f("window_layers", c.window_layers,
      "Layers with the window: \"1\" all, \"2\" every second, or a list.");
    f("sinks", c.sinks, "Attention sinks: one learned logit per head in the softmax (gpt-oss).");
    f("attn_gate", c.attn_gate,
      "Output gate: attention's heads times a sigmoid of a product of its input (Qwen3-Next).");
    f("mla", c.mla, "Multi-head latent attention (DeepSeek); null: off.");
    f("delta", c.delta,
      "Gated DeltaNet, linear attention with a state, in some layers (Qwen3-Next); null: off.");
    f("block", c.block, "How attention and feed-forward of a block follow each other.");
    f("mtp", c.mtp, "Multi-token prediction.");
    f("moe", c.moe, "Mixture of experts.");
    f("lora", c.lora, "Low-rank adapters beside the targets; all other weights are frozen.");
    f("first_dense", c.first_dense, "Number of leading dense layers; overrides moe.layers.");
    f("z_loss", c.z_loss,
      "Coefficient of the output logits' z-loss, mean logsumexp squared; 0: off.");
    f("overrides", c.overrides, "Settings for single layers; later entries win.");
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
    {"max_positions", 1 << 30}, {"key_heads", 1 << 16},
    {"value_heads", 1 << 16},   {"key_dim", 1 << 16},
    {"conv", 1 << 10},
};

// All that is wrong, a line each, before anything is made (Code::kBadValue).
void validate(const ModelConfig& config);

// One block's sizes, with overrides applied: what modules are built from and costs are counted by.
struct LayerConfig {
  int64_t index = 0;
  bool attention = true;
  bool delta = false;  // it is ModelConfig::delta
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t window = 0;
  int64_t ffn = 0;                    // of a dense layer
  std::optional<MoeConfig> moe = {};  // absent: dense
};
LayerConfig layer_config(const ModelConfig& config,
                         int64_t layer);            // an MTP block: layer >= layers
int64_t num_moe_layers(const ModelConfig& config);  // without MTP's
bool has_adapters(const ModelConfig& config);       // model.lora or model.moe.lora
// Whether some layer has what the target adapts.
bool has_target(const ModelConfig& config, LoraTarget target);
// All MoE layers, whichever rank has them, in the order of for_each_moe, MTP modules' among them.
struct MoeUnit {
  int64_t unit = 0;
  MoeConfig config;
};
std::vector<MoeUnit> moe_units(const ModelConfig& config);
// Shape of the MoE layer in that block. An MTP block's number follows all others: no table of the
// first layers (R14) is its router. group_ranks: |G|, ranks that share a microbatch.
MoeShape moe_shape(const ModelConfig& config, const LayerConfig& layer, int64_t group_ranks = 1);
int64_t padded_vocab(const ModelConfig& config);

}  // namespace troupe
