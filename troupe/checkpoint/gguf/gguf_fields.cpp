#include "troupe/checkpoint/gguf/gguf_fields.h"

#include <cmath>
#include <string>
#include <utility>
#include <variant>

namespace troupe::gguf {
namespace {

// llama.cpp's numbers of the scores that experts are chosen by.
constexpr int64_t kSoftmaxScores = 1, kSigmoidScores = 2;

class Fields {
 public:
  explicit Fields(std::string_view architecture) : prefix_(std::string(architecture) + '.') {}

  void count(const char* key, int64_t value) { add(key, static_cast<uint32_t>(value)); }
  void number(const char* key, double value) { add(key, static_cast<float>(value)); }
  void flag(const char* key, bool value) { add(key, value); }
  void text(const char* key, const char* value) { add(key, std::string(value)); }
  std::vector<GgufField> take() { return std::move(fields_); }

 private:
  void add(const char* key, GgufValue value) {
    fields_.push_back({prefix_ + key, std::move(value)});
  }

  std::string prefix_;
  std::vector<GgufField> fields_;
};

void add_sizes(Fields& f, const Family& family, const ModelConfig& c) {
  const bool joined = c.moe.experts > 0 && !family.own_expert_width;
  f.count("vocab_size", c.vocab);
  f.count("context_length", c.max_positions);
  f.count("embedding_length", c.width);
  f.count("block_count", c.layers);
  f.count("feed_forward_length", joined || c.ffn == 0 ? c.moe.ffn.hidden : c.ffn);
  f.number(c.norm.kind == NormForm::kLayer ? "attention.layer_norm_epsilon"
                                           : "attention.layer_norm_rms_epsilon",
           c.norm.eps);
}

void add_attention(Fields& f, const ModelConfig& c) {
  const LayerConfig l = layer_config(c, 0);
  f.count("attention.head_count", l.heads);
  f.count("attention.head_count_kv", l.kv_heads);
  f.count("attention.key_length", l.head_dim);
  f.count("attention.value_length", l.head_dim);
  f.count("rope.dimension_count", l.head_dim);
  if (c.clip_qkv) f.number("attention.clamp_kqv", *c.clip_qkv);
  if (l.window > 0 && l.window < c.max_positions) f.count("attention.sliding_window", l.window);
}

// Absorbed: one head of keys, the latent and its rotary part, whose first part is the value too.
void add_latent_attention(Fields& f, const ModelConfig& c) {
  const MlaConfig& m = *c.mla;
  f.count("attention.head_count", c.heads);
  f.count("attention.head_count_kv", 1);
  f.count("attention.key_length", m.kv_rank + m.rope_dim);
  f.count("attention.value_length", m.kv_rank);
  f.count("attention.key_length_mla", m.nope_dim + m.rope_dim);
  f.count("attention.value_length_mla", m.value_dim);
  if (m.q_rank > 0) f.count("attention.q_lora_rank", m.q_rank);
  f.count("attention.kv_lora_rank", m.kv_rank);
  f.count("rope.dimension_count", m.rope_dim);
}

void add_rope(Fields& f, const ModelConfig& c) {
  const RopeConfig& r = c.rope;
  f.number("rope.freq_base", r.theta);
  if (r.scaling == RopeScaling::kLinear || r.scaling == RopeScaling::kYarn) {
    f.text("rope.scaling.type", r.scaling == RopeScaling::kYarn ? "yarn" : "linear");
    f.number("rope.scaling.factor", r.factor);
  }
  if (r.scaling != RopeScaling::kYarn) return;
  f.count("rope.scaling.original_context_length", r.original_positions);
  if (c.mla) f.number("rope.scaling.yarn_log_multiplier", 0.1 * r.mscale_all_dim.value_or(0));
}

void add_router(Fields& f, const ModelConfig& c) {
  const auto* const softmax = std::get_if<TopkSoftmaxRouting>(&c.moe.router);
  const auto* const biased = std::get_if<SigmoidBiasRouting>(&c.moe.router);
  f.count("expert_gating_func", biased != nullptr ? kSigmoidScores : kSoftmaxScores);
  f.flag("expert_weights_norm", sums_to_one(c));
  f.number("expert_weights_scale", biased != nullptr ? biased->scale : softmax->scale);
  if (biased == nullptr || biased->limit.groups == 1) return;
  f.count("expert_group_count", biased->limit.groups);
  f.count("expert_group_used_count", biased->limit.keep);
}

void add_moe(Fields& f, const Family& family, const ModelConfig& c) {
  const int64_t hidden = c.moe.ffn.hidden;
  f.count("expert_count", c.moe.experts);
  f.count("expert_used_count", c.moe.top_k);
  if (family.own_expert_width) f.count("expert_feed_forward_length", hidden);
  if (c.mla) {
    f.count("leading_dense_block_count", c.first_dense);
    f.count("expert_shared_count", c.moe.shared.experts);
    add_router(f, c);
  } else if (c.moe.shared.experts > 0) {
    f.count("expert_shared_feed_forward_length", c.moe.shared.width_for(hidden));
  }
}

// Granite's four factors, which our weights have in them.
void add_multipliers(Fields& f, const ModelConfig& c) {
  f.number("attention.scale", 1 / std::sqrt(static_cast<double>(layer_config(c, 0).head_dim)));
  for (const char* key : {"embedding_scale", "residual_scale", "logit_scale"}) f.number(key, 1);
}

}  // namespace

std::vector<GgufField> model_fields(const Family& family, const ModelConfig& c) {
  Fields f(family.architecture);
  add_sizes(f, family, c);
  c.mla ? add_latent_attention(f, c) : add_attention(f, c);
  add_rope(f, c);
  if (c.moe.experts > 0) add_moe(f, family, c);
  if (family.model_type == "granitemoe") add_multipliers(f, c);
  return f.take();
}

}  // namespace troupe::gguf
