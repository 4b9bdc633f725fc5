#include "troupe/nn/config/presets.h"

#include <algorithm>
#include <array>
#include <string>

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/core/text/suggest.h"

namespace troupe {
namespace {

using Text = std::string_view;

// What several models share.
constexpr Text kLlama = "{norm: {kind: rms_rounded, eps: 1e-5}, init_std: 0.02}";
constexpr Text kLlama2 = "{vocab: 32000, max_positions: 4096}";
constexpr Text kLlama3 = "{vocab: 128256, max_positions: 8192, kv_heads: 8, rope: {theta: 500000}}";
constexpr Text kLlama31 =
    "{vocab: 128256, max_positions: 131072, kv_heads: 8, rope: {theta: 500000, scaling: llama3, "
    "factor: 8, original_positions: 8192, low_freq: 1, high_freq: 4}}";
constexpr Text kMixtral =
    "{kv_heads: 8, norm: {kind: rms_rounded, eps: 1e-5}, rope: {theta: 1000000}, moe: {experts: 8, "
    "top_k: 2, router: {kind: topk_softmax, order: after, balance: {aux_loss: 0.01}}}}";
constexpr Text kOlmoe =
    "{vocab: 50304, qk_norm: whole, norm: {kind: rms_rounded, eps: 1e-5}, init_std: 0.02, moe: "
    "{router: {kind: topk_softmax, order: before, balance: {aux_loss: 0.01, z_loss: 0.001}}}}";
constexpr Text kQwen3 =
    "{norm: {kind: rms_rounded, eps: 1e-6}, vocab: 151936, max_positions: 40960, kv_heads: 4, "
    "head_dim: 128, qk_norm: head, rope: {theta: 1000000}, init_std: 0.02, moe: {experts: 128, "
    "top_k: 8, router: {kind: topk_softmax, order: before, p_norm: 1, balance: {aux_loss: 0, "
    "global_loss: 0.001}}}}";
constexpr Text kQwen3Next =
    "{norm: {kind: rms, eps: 1e-6}, vocab: 151936, max_positions: 262144, layers: 48, width: 2048, "
    "heads: 16, kv_heads: 2, head_dim: 256, qk_norm: head, attn_gate: true, rope: {theta: "
    "10000000, fraction: 0.25}, init_std: 0.02, delta: {layers: '[1,1,1,0]*12'}, moe: {experts: "
    "512, top_k: 10, hidden: 512, shared: {experts: 1, form: gate}, router: {kind: topk_softmax, "
    "order: before, p_norm: 1, balance: {aux_loss: 0, global_loss: 0.001}}}}";
constexpr Text kDbrx =
    "{kv_heads: 8, vocab: 100352, max_positions: 32768, norm: {kind: layer, eps: 1e-5}, rope: "
    "{theta: 500000}, clip_qkv: 8, moe: {router: {kind: topk_softmax, order: before, p_norm: 1, "
    "jitter: 0.01, balance: {aux_loss: 0, batched_loss: 0.05}}}}";
constexpr Text kDbrxSmall = "{max_positions: 4096, moe: {experts: 16, top_k: 4}}";
constexpr Text kDeepseek =
    "{norm: {kind: rms_rounded, eps: 1e-6}, max_positions: 163840, rope: {theta: 10000, "
    "interleaved: true, scaling: yarn, factor: 40, original_positions: 4096, beta_fast: 32, "
    "beta_slow: 1}, mla: {kv_rank: 512, nope_dim: 128, rope_dim: 64, value_dim: 128}, init_std: "
    "0.006}";
constexpr Text kGptOss =
    "{width: 2880, heads: 64, kv_heads: 8, head_dim: 64, vocab: 201088, max_positions: 131072, "
    "norm: {kind: rms, eps: 1e-5}, bias: true, sinks: true, window: 128, window_layers: '2', "
    "init_std: 0.02, rope: {theta: 150000, scaling: yarn, factor: 32, original_positions: 4096, "
    "beta_fast: 32, beta_slow: 1, truncate: false}, moe: {top_k: 4, hidden: 2880, activation: "
    "quick_gelu, clamp: 7, offset: 1, bias: true, router: {kind: topk_softmax, order: after, bias: "
    "true}}}";
constexpr Text kGpt2 =
    "{vocab: 51200, max_positions: 1024, positions: learned, bias: true, tie_embeddings: true, "
    "norm: {kind: layer, eps: 1e-5, bias: true}, act: gelu_tanh}";
constexpr Text kGpt2Dropless =
    "{scaled_init: false, moe: {experts: 64, top_k: 1, activation: gelu_tanh, gated: false, "
    "output_bias: true, router: {kind: topk_softmax, order: before, balance: {aux_loss: 0, "
    "batched_loss: 0.1}}}}";
constexpr Text kGpt2Dropping =
    "{scaled_init: false, moe: {experts: 64, top_k: 1, activation: gelu_tanh, gated: false, "
    "output_bias: true, router: {kind: topk_softmax, order: before, balance: {aux_loss: 0, "
    "batched_loss: 0.1}}, capacity: {factor: 1, policy: position, pad: true}}}";

struct Preset {
  Text name;
  std::array<Text, 3> parts;  // one over the other
};

constexpr Preset kPresets[] = {
    {"llama-2-7b", {kLlama, kLlama2, "{layers: 32, width: 4096, heads: 32, ffn: 11008}"}},
    {"llama-2-13b", {kLlama, kLlama2, "{layers: 40, width: 5120, heads: 40, ffn: 13824}"}},
    {"llama-2-70b",
     {kLlama, kLlama2, "{layers: 80, width: 8192, heads: 64, kv_heads: 8, ffn: 28672}"}},
    {"llama-3-8b", {kLlama, kLlama3, "{layers: 32, width: 4096, heads: 32, ffn: 14336}"}},
    {"llama-3-70b", {kLlama, kLlama3, "{layers: 80, width: 8192, heads: 64, ffn: 28672}"}},
    {"llama-3.1-8b", {kLlama, kLlama31, "{layers: 32, width: 4096, heads: 32, ffn: 14336}"}},
    {"llama-3.2-1b",
     {kLlama, kLlama31,
      "{layers: 16, width: 2048, heads: 32, ffn: 8192, tie_embeddings: true, rope: {factor: 32}}"}},
    {"mixtral-8x7b",
     {kMixtral,
      "{layers: 32, width: 4096, heads: 32, vocab: 32000, max_positions: 32768, moe: {hidden: "
      "14336}}"}},
    {"mixtral-8x22b",
     {kMixtral,
      "{layers: 56, width: 6144, heads: 48, vocab: 32768, max_positions: 65536, moe: {hidden: "
      "16384}}"}},
    {"olmoe-1b-7b",
     {kOlmoe, "{layers: 16, width: 2048, heads: 16, moe: {experts: 64, top_k: 8, hidden: 1024}}"}},
    {"qwen3-next-80b-a3b", {kQwen3Next}},
    {"qwen3-30b-a3b", {kQwen3, "{layers: 48, width: 2048, heads: 32, moe: {hidden: 768}}"}},
    {"qwen3-235b-a22b", {kQwen3, "{layers: 94, width: 4096, heads: 64, moe: {hidden: 1536}}"}},
    {"dbrx",
     {kDbrx, "{layers: 40, width: 6144, heads: 48, moe: {experts: 16, top_k: 4, hidden: 10752}}"}},
    {"dbrx-9b", {kDbrx, kDbrxSmall, "{layers: 24, width: 2048, heads: 16, moe: {hidden: 3584}}"}},
    {"dbrx-18b", {kDbrx, kDbrxSmall, "{layers: 22, width: 3072, heads: 24, moe: {hidden: 5376}}"}},
    {"dbrx-35b", {kDbrx, kDbrxSmall, "{layers: 24, width: 4096, heads: 32, moe: {hidden: 7168}}"}},
    {"dbrx-73b", {kDbrx, kDbrxSmall, "{layers: 32, width: 5120, heads: 40, moe: {hidden: 8960}}"}},
    {"deepseek-v2-lite",
     {kDeepseek,
      "{layers: 27, width: 2048, heads: 16, vocab: 102400, ffn: 10944, first_dense: 1, rope: "
      "{mscale: 0.707, mscale_all_dim: 0.707}, moe: {experts: 64, top_k: 6, hidden: 1408, shared: "
      "{experts: 2}, router: {kind: topk_softmax, order: before, balance: {aux_loss: 0, seq_loss: "
      "0.001}}}}"}},
    {"deepseek-v3",
     {kDeepseek,
      "{layers: 61, width: 7168, heads: 128, vocab: 129280, ffn: 18432, first_dense: 3, rope: "
      "{mscale: 1, mscale_all_dim: 1}, mla: {q_rank: 1536}, mtp: {depth: 1, weight: 0.3}, moe: "
      "{experts: 256, top_k: 8, hidden: 2048, shared: {experts: 1}, router: {kind: sigmoid_bias, "
      "scale: 2.5, limit: {groups: 8, keep: 4, top: 2}, balance: {seq_loss: 0.0001}}}}"}},
    {"gpt-oss-20b",
     {kGptOss, "{layers: 24, moe: {experts: 32, router: {balance: {aux_loss: 0.15}}}}"}},
    {"gpt-oss-120b",
     {kGptOss, "{layers: 36, moe: {experts: 128, router: {balance: {aux_loss: 0.1}}}}"}},
    {"megablocks-46m", {kGpt2, "{layers: 6, width: 512, heads: 8, ffn: 2048}"}},
    {"megablocks-125m", {kGpt2, "{layers: 12, width: 768, heads: 12, ffn: 3072}"}},
    {"megablocks-356m", {kGpt2, "{layers: 24, width: 1024, heads: 16, ffn: 4096}"}},
    {"megablocks-760m", {kGpt2, "{layers: 24, width: 1536, heads: 16, ffn: 6144}"}},
    {"megablocks-1.3b", {kGpt2, "{layers: 24, width: 2048, heads: 16, ffn: 8192}"}},
    {"megablocks-dmoe-46m",
     {kGpt2, kGpt2Dropless, "{layers: 6, width: 512, heads: 8, moe: {hidden: 2048}}"}},
    {"megablocks-dmoe-125m",
     {kGpt2, kGpt2Dropless, "{layers: 12, width: 768, heads: 12, moe: {hidden: 3072}}"}},
    {"megablocks-dmoe-356m",
     {kGpt2, kGpt2Dropless, "{layers: 24, width: 1024, heads: 16, moe: {hidden: 4096}}"}},
    {"megablocks-dmoe-760m",
     {kGpt2, kGpt2Dropless, "{layers: 24, width: 1536, heads: 16, moe: {hidden: 6144}}"}},
    {"megablocks-moe-46m",
     {kGpt2, kGpt2Dropping, "{layers: 6, width: 512, heads: 8, moe: {hidden: 2048}}"}},
    {"megablocks-moe-125m",
     {kGpt2, kGpt2Dropping, "{layers: 12, width: 768, heads: 12, moe: {hidden: 3072}}"}},
    {"megablocks-moe-356m",
     {kGpt2, kGpt2Dropping, "{layers: 24, width: 1024, heads: 16, moe: {hidden: 4096}}"}},
    {"megablocks-moe-760m",
     {kGpt2, kGpt2Dropping, "{layers: 24, width: 1536, heads: 16, moe: {hidden: 6144}}"}},
};

}  // namespace

std::vector<std::string_view> ModelConfig::presets() {
  std::vector<std::string_view> names;
  for (const Preset& p : kPresets) names.push_back(p.name);
  return names;
}

bool ModelConfig::select_preset(std::string_view name) {
  const auto* const found = std::find_if(std::begin(kPresets), std::end(kPresets),
                                         [&](const Preset& p) { return p.name == name; });
  if (found == std::end(kPresets)) return false;
  *this = ModelConfig();
  for (const Text part : found->parts) {
    if (part.empty()) continue;
    read_config(parse_yaml(std::string(part), "preset " + std::string(name)), *this);
  }
  preset = name;
  return true;
}

ModelConfig preset(std::string_view name) {
  ModelConfig config;
  if (config.select_preset(name)) return config;
  const std::string_view guess = nearest(name, ModelConfig::presets());
  fail(Code::kNoSuchKind, "model.preset", "no preset '" + std::string(name) + "'",
       guess.empty() ? "" : "; did you mean '" + std::string(guess) + "'?");
}

}  // namespace troupe
