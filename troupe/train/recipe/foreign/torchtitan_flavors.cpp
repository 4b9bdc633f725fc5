#include "troupe/train/recipe/foreign/torchtitan_flavors.h"

#include <algorithm>
#include <array>

#include "troupe/core/config/yaml.h"

namespace troupe {
namespace {

using Text = std::string_view;

// What several flavors share. Matrices of the first product are drawn with 0.02 in all of them.
constexpr Text kCommon = "{norm: {kind: rms, eps: 1e-5}, init_std: 0.02}";
// precompute_freqs_cis() turns neighbors, and scales the frequencies of every flavor.
constexpr Text kLlama =
    "{rope: {theta: 500000, interleaved: true, scaling: llama3, factor: 8, original_positions: "
    "8192, low_freq: 1, high_freq: 4}}";
constexpr Text kLlamaDebug = "{layers: 6, width: 256, heads: 16, ffn: 768, vocab: 2048}";
constexpr Text kLlamaLarge = "{vocab: 128256, kv_heads: 8}";
constexpr Text kQwen =
    "{vocab: 151936, norm: {eps: 1e-6}, kv_heads: 8, head_dim: 128, qk_norm: head, rope: {theta: "
    "1000000}}";
// Its optimizer is built without the hook that moves the experts' bias, which stays 0.
constexpr Text kQwenMoe =
    "{moe: {router: {kind: topk_softmax, order: before, p_norm: 1, balance: {aux_loss: 0}}}}";
constexpr Text kDeepseek =
    "{mla: {kv_rank: 512, nope_dim: 128, rope_dim: 64, value_dim: 128, eps: 1e-5}, rope: {theta: "
    "10000, interleaved: true}}";
constexpr Text kSigmoid =
    "{moe: {router: {kind: sigmoid_bias, score: sigmoid, bias_rate: 1e-3, center: true}}}";
constexpr Text kSoftmax =
    "{vocab: 102400, moe: {router: {kind: topk_softmax, order: before, balance: {aux_loss: 0}}}}";
constexpr Text kGptOss =
    "{width: 2880, heads: 64, kv_heads: 8, head_dim: 64, vocab: 201088, bias: true, sinks: true, "
    "window: 128, window_layers: '2', rope: {theta: 150000, scaling: yarn, factor: 32, "
    "original_positions: 4096, beta_fast: 32, beta_slow: 1, truncate: false}, moe: {top_k: 4, "
    "hidden: 2880, activation: quick_gelu, clamp: 7, offset: 1, bias: true, router: {kind: "
    "sigmoid_bias, score: softmax, bias_rate: 1e-3, center: true, bias: true}}}";

struct Flavor {
  Text name, flavor;
  std::array<Text, 4> parts;  // one over the other, on kCommon
  bool documents = false, bias_alone = false;
};
constexpr Text kLlama8 = "{layers: 32, width: 4096, heads: 32, ffn: 14336}";
constexpr Text kDeepseekDebug =
    "{vocab: 2048, layers: 6, width: 256, heads: 16, ffn: 1024, first_dense: 1, moe: {experts: 8, "
    "top_k: 3, hidden: 256, shared: {experts: 2}}}";

constexpr Flavor kFlavors[] = {
    {"llama3", "debugmodel", {kLlama, kLlamaDebug}},
    {"llama3", "debugmodel_flex_attn", {kLlama, kLlamaDebug}, true},
    {"llama3", "debugmodel_varlen_attn", {kLlama, kLlamaDebug}, true},
    {"llama3", "8B", {kLlama, kLlamaLarge, kLlama8}},
    {"llama3", "8B_flex", {kLlama, kLlamaLarge, kLlama8}, true},
    {"llama3", "8B_varlen", {kLlama, kLlamaLarge, kLlama8}, true},
    {"llama3", "70B", {kLlama, kLlamaLarge, "{layers: 80, width: 8192, heads: 64, ffn: 28672}"}},
    {"llama3",
     "405B",
     {kLlama, kLlamaLarge, "{layers: 126, width: 16384, heads: 128, ffn: 53248}"}},
    {"qwen3",
     "debugmodel",
     {kQwen, "{vocab: 2048, layers: 8, width: 256, heads: 16, ffn: 3072, tie_embeddings: true}"}},
    {"qwen3",
     "0.6B",
     {kQwen, "{layers: 28, width: 1024, heads: 16, ffn: 3072, tie_embeddings: true}"}},
    {"qwen3",
     "1.7B",
     {kQwen, "{layers: 28, width: 2048, heads: 16, ffn: 6144, tie_embeddings: true}"}},
    {"qwen3",
     "4B",
     {kQwen, "{layers: 36, width: 2560, heads: 32, ffn: 9728, tie_embeddings: true}"}},
    {"qwen3", "8B", {kQwen, "{layers: 36, width: 4096, heads: 32, ffn: 12288}"}},
    {"qwen3", "14B", {kQwen, "{layers: 40, width: 5120, heads: 40, ffn: 17408}"}},
    {"qwen3", "32B", {kQwen, "{layers: 64, width: 5120, heads: 64, ffn: 25600}"}},
    {"qwen3",
     "debugmodel_moe",
     {kQwen, kQwenMoe,
      "{vocab: 2048, layers: 8, width: 256, heads: 16, moe: {experts: 64, top_k: 8, hidden: "
      "768}}"}},
    {"qwen3",
     "30B-A3B",
     {kQwen, kQwenMoe,
      "{kv_heads: 4, layers: 48, width: 2048, heads: 32, moe: {experts: 128, top_k: 8, hidden: "
      "768}}"}},
    {"qwen3",
     "235B-A22B",
     {kQwen, kQwenMoe,
      "{kv_heads: 4, layers: 94, width: 4096, heads: 64, rope: {theta: 5000000}, moe: {experts: "
      "128, top_k: 8, hidden: 1536}}"}},
    {"deepseek_v3", "debugmodel", {kDeepseek, kSoftmax, kDeepseekDebug}, false, true},
    {"deepseek_v3", "debugmodel_flex_attn", {kDeepseek, kSoftmax, kDeepseekDebug}, true, true},
    {"deepseek_v3",
     "16B",
     {kDeepseek, kSoftmax,
      "{layers: 27, width: 2048, heads: 16, ffn: 10944, first_dense: 1, moe: {experts: 64, top_k: "
      "6, hidden: 1408, shared: {experts: 2}}}"},
     true,
     true},
    {"deepseek_v3",
     "236B",
     {kDeepseek, kSoftmax,
      "{layers: 60, width: 5120, heads: 128, ffn: 12288, first_dense: 1, mla: {q_rank: 1536}, moe: "
      "{experts: 160, top_k: 6, hidden: 1536, shared: {experts: 2}, router: {scale: 16, limit: "
      "{groups: 8, keep: 3, top: 2}}}}"},
     true,
     true},
    {"deepseek_v3",
     "671B",
     {kDeepseek, kSigmoid,
      "{vocab: 129280, layers: 61, width: 7168, heads: 128, ffn: 18432, first_dense: 3, mla: "
      "{q_rank: 1536}, moe: {experts: 256, top_k: 8, hidden: 2048, shared: {experts: 1}, router: "
      "{scale: 2.5, limit: {groups: 8, keep: 4, top: 2}}}}"},
     true},
    {"gpt_oss", "debugmodel", {kGptOss, "{width: 256, layers: 4, moe: {experts: 8}}"}},
    {"gpt_oss", "20b", {kGptOss, "{layers: 24, moe: {experts: 32}}"}},
    {"gpt_oss", "120b", {kGptOss, "{layers: 36, moe: {experts: 128}}"}},
};

// The leaves of `y`, over those that are there.
void put_leaves(const Yaml& y, const std::string& path,
                std::vector<std::pair<std::string, std::string>>& out) {
  for (const Yaml::Field& field : y.fields) {
    std::string inner = path;
    put_leaves(field.value, inner.append(path.empty() ? "" : ".").append(field.name), out);
  }
  if (y.kind != Yaml::Kind::kScalar) return;
  const auto there = std::ranges::find(out, path, &std::pair<std::string, std::string>::first);
  if (there != out.end()) {
    there->second = y.text;
  } else {
    out.emplace_back(path, y.text);
  }
}

}  // namespace

TorchtitanFlavor torchtitan_flavor(std::string_view name, std::string_view flavor,
                                   int64_t sequence) {
  TorchtitanFlavor out;
  if (name == "llama3_ft") name = "llama3";  // the same, whose replicas step apart
  const auto* const found = std::ranges::find_if(
      kFlavors, [&](const Flavor& f) { return f.name == name && f.flavor == flavor; });
  if (found == std::end(kFlavors)) return out;
  put_leaves(parse_yaml(std::string(kCommon), "torchtitan"), "", out.fields);
  for (const Text part : found->parts) {
    put_leaves(parse_yaml(std::string(part), "torchtitan"), "", out.fields);
  }
  // Rows that are longer than the first context stretch it; those as long do not.
  constexpr int64_t kContext = 4096;
  if (name == "deepseek_v3" && sequence > kContext) {
    const std::string_view mscale = found->parts[1] == kSigmoid || flavor == "236B" ? "1" : "0.7";
    for (const auto& [key, value] : {std::pair<Text, Text>{"scaling", "yarn"},
                                     {"factor", "40"},
                                     {"original_positions", "4096"},
                                     {"beta_fast", "32"},
                                     {"beta_slow", "1"},
                                     {"mscale", mscale},
                                     {"mscale_all_dim", mscale}}) {
      out.fields.emplace_back("rope." + std::string(key), value);
    }
  }
  out.fields.emplace_back("max_positions", std::to_string(sequence));
  out.documents = found->documents;
  out.bias_alone = found->bias_alone;
  out.unbalanced = found->parts[1] == kQwenMoe;
  return out;
}

}  // namespace troupe
