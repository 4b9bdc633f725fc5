#include "troupe/checkpoint/gguf/gguf_families.h"

#include <algorithm>
#include <iterator>
#include <variant>

#include "troupe/core/check.h"

namespace troupe::gguf {
namespace {

// llama.cpp reads a window for gpt-oss alone. One as long as any text is none.
std::string windowed(const ModelConfig& c) {
  for (int64_t i = 0; i < c.layers; ++i) {
    const int64_t window = layer_config(c, i).window;
    if (window > 0 && window < c.max_positions) {
      return std::string("window is ") + std::to_string(window) + " of " +
             std::to_string(c.max_positions) +
             " positions: llama.cpp has no sliding window there; a model.max_positions of the "
             "window's length has the same logits";
    }
  }
  return "";
}

std::string dense_among(const ModelConfig& c, int64_t first) {
  for (int64_t i = 0; i < c.layers; ++i) {
    if (layer_config(c, i).moe.has_value() == (i >= first)) continue;
    return std::string("moe.layers: layer ") + std::to_string(i) + " is " +
           (i >= first ? "dense" : "of experts") + "; llama.cpp has experts in every layer" +
           (first > 0 ? " behind the dense ones" : "");
  }
  return "";
}

bool has_qkv_bias(const ModelConfig& c) {
  return c.qkv_bias.value_or(c.bias);
}

std::string plain(const ModelConfig& c) {
  return windowed(c);
}

std::string unbiased(const ModelConfig& c) {
  if (has_qkv_bias(c)) return "qkv_bias is true: llama.cpp has no place for these biases";
  return windowed(c);
}

std::string qwen2_moe(const ModelConfig& c) {
  if (sums_to_one(c))
    return "moe.router: a token's weights are divided by their sum; llama.cpp does not divide them";
  return dense_among(c, 0);
}

std::string qwen3_moe(const ModelConfig& c) {
  if (!sums_to_one(c)) {
    return "moe.router: a token's weights are taken as they are; llama.cpp divides them by their "
           "sum (p_norm: 1)";
  }
  const std::string layers = dense_among(c, 0);
  return layers.empty() ? unbiased(c) : layers;
}

std::string olmoe(const ModelConfig& c) {
  if (c.clip_qkv) return "clip_qkv is set: llama.cpp does not clip here";
  if (c.kv_heads > 0 && c.kv_heads != c.heads) {
    return std::string("kv_heads is ") + std::to_string(c.kv_heads) + " of " +
           std::to_string(c.heads) + ": llama.cpp has a norm as wide as the model for the keys too";
  }
  if (sums_to_one(c))
    return "moe.router: a token's weights are divided by their sum; llama.cpp does not divide them";
  return unbiased(c);
}

std::string dbrx(const ModelConfig& c) {
  const auto* const softmax = std::get_if<TopkSoftmaxRouting>(&c.moe.router);
  if (softmax == nullptr || !sums_to_one(c) || softmax->p_norm > 1) {
    return "moe.router: llama.cpp divides a token's weights by their sum, and this model does not";
  }
  if (!c.clip_qkv) return "clip_qkv is not set: llama.cpp's files of this family have it";
  return windowed(c);
}

// Every second layer has a window, from the first one on.
std::string gpt_oss(const ModelConfig& c) {
  if (c.moe.ffn.form.clamp != 7.0) return "moe.clamp is not 7, which llama.cpp has";
  for (int64_t i = 0; i < c.layers; ++i) {
    if ((layer_config(c, i).window > 0) == (i % 2 == 0)) continue;
    return std::string("window_layers: layer ") + std::to_string(i) +
           "; llama.cpp has the window in layers 0, 2, 4 and so on";
  }
  return "";
}

std::string deepseek(const ModelConfig& c) {
  if (c.mla->q_rank == 0 && c.layers != 26 && c.layers != 27) {
    return "mla.q_rank is 0: llama.cpp knows queries without a latent in models of 26 or 27 layers "
           "alone";
  }
  const SharedConfig& shared = c.moe.shared;
  if (shared.experts == 0 ||
      shared.width_for(c.moe.ffn.hidden) != shared.experts * c.moe.ffn.hidden) {
    return "moe.shared: llama.cpp has one or more shared experts as wide as the others";
  }
  const auto* const softmax = std::get_if<TopkSoftmaxRouting>(&c.moe.router);
  if (softmax != nullptr && softmax->limit.groups > 1) {
    return "moe.router.limit: llama.cpp ranks groups by their two best experts, this model by one";
  }
  if (c.rope.scaling == RopeScaling::kYarn &&
      (!c.rope.mscale_all_dim || c.rope.mscale != c.rope.mscale_all_dim)) {
    return "rope.mscale: llama.cpp has one number for mscale and mscale_all_dim";
  }
  return dense_among(c, c.first_dense);
}

constexpr Family kFamilies[] = {
    {.model_type = "llama", .architecture = "llama", .turned = true, .unlike = plain},
    {.model_type = "mistral", .architecture = "llama", .turned = true, .unlike = plain},
    {.model_type = "mixtral", .architecture = "llama", .turned = true, .unlike = plain},
    {.model_type = "granitemoe", .architecture = "granitemoe", .turned = true, .unlike = plain},
    {.model_type = "qwen2", .architecture = "qwen2", .unlike = plain},
    {.model_type = "qwen3", .architecture = "qwen3", .unlike = unbiased},
    {.model_type = "qwen2_moe",
     .architecture = "qwen2moe",
     .own_expert_width = true,
     .unlike = qwen2_moe},
    {.model_type = "qwen3_moe",
     .architecture = "qwen3moe",
     .own_expert_width = true,
     .unlike = qwen3_moe},
    {.model_type = "olmoe", .architecture = "olmoe", .unlike = olmoe},
    {.model_type = "dbrx", .architecture = "dbrx", .joined_qkv = true, .unlike = dbrx},
    {.model_type = "deepseek_v2",
     .architecture = "deepseek2",
     .own_expert_width = true,
     .unlike = deepseek},
    {.model_type = "deepseek_v3",
     .architecture = "deepseek2",
     .own_expert_width = true,
     .unlike = deepseek},
    {.model_type = "gpt_oss",
     .architecture = "gpt-oss",
     .own_expert_width = true,
     .unlike = gpt_oss},
};

std::string unlike_rope(const Family& family, const ModelConfig& c) {
  const RopeConfig& r = c.rope;
  if (r.scaling == RopeScaling::kLlama3 && family.architecture != "llama") {
    return "rope.scaling is llama3: llama.cpp reads its factors for Llama's architecture alone";
  }
  if (r.scaling != RopeScaling::kYarn) return "";
  if (r.beta_fast != 32 || r.beta_slow != 1)
    return "rope.beta_fast and beta_slow are not 32 and 1, which llama.cpp has";
  if (r.attention_factor || (!c.mla && (r.mscale || r.mscale_all_dim)))
    return "rope.attention_factor: llama.cpp derives it from rope.factor";
  if (!r.truncate && family.model_type != "gpt_oss")
    return "rope.truncate is false: llama.cpp rounds to whole dimensions";
  return "";
}

}  // namespace

bool sums_to_one(const ModelConfig& c) {
  const auto* const softmax = std::get_if<TopkSoftmaxRouting>(&c.moe.router);
  return softmax != nullptr ? softmax->sums_to_one(c.moe.top_k) : c.moe.top_k > 1;
}

std::string model_types() {
  std::string out;
  for (const Family& family : kFamilies) {
    out.append(out.empty() ? "" : ", ").append(family.model_type);
  }
  return out;
}

const Family& family_of(const HfConfig& config) {
  const std::string_view type = config.family->model_type;
  const auto* const found = std::ranges::find(kFamilies, type, &Family::model_type);
  if (found != std::end(kFamilies)) return *found;
  fail(Code::kBadModelConfig, "--gguf", "the family", std::string(type),
       "is not written as a GGUF file; these are:",
       model_types() + ". An export without --gguf writes the hub's folder");
}

void require_computed(const Family& family, const ModelConfig& c) {
  std::string what = unlike_rope(family, c);
  if (what.empty()) what = family.unlike(c);
  if (what.empty()) return;
  fail(Code::kBadModelConfig, "--gguf",
       "llama.cpp would compute other logits for this model of the family",
       std::string(family.model_type) + ": model." + what);
}

}  // namespace troupe::gguf
