#include "troupe/train/start_lines.h"

#include "troupe/core/text/text.h"
#include "troupe/ops/attention/attention_cudnn.h"
#include "troupe/train/learner.h"

namespace troupe {
namespace {

std::string losses_of(const BalanceConfig& config) {
  std::string out;
  BalanceConfig::visit(config, [&](std::string_view name, const auto& value, auto&&...) {
    if constexpr (std::is_same_v<std::decay_t<decltype(value)>, double>) {
      if (value != 0) out += (out.empty() ? "" : ", ") + std::string(name) + ' ' + to_text(value);
    }
  });
  return out;
}

}  // namespace

std::string balance_line(const ModelConfig& model) {
  if (num_moe_layers(model) == 0) return {};
  const RouterConfig& router = model.moe.router;
  std::string how;
  bool balanced = true;
  std::visit(
      [&](const auto& c) {
        if constexpr (requires { c.balance; }) {
          how = losses_of(c.balance);
          balanced = c.balance.balances();
        }
        if constexpr (requires { c.bias_rate; }) {
          how = "a bias that moves by " + to_text(c.bias_rate) + (how.empty() ? "" : ", " + how);
          balanced |= c.bias_rate != 0;
        }
      },
      router);
  if (how.empty() && balanced) how = "by the router " + std::string(router.kind());
  if (balanced) return "balance: " + how;
  return "balance: none" + (how.empty() ? "" : " (" + how + ')') +
         ": no load balancing is on; experts may collapse. Try "
         "model.moe.router.balance.aux_loss=0.01";
}

bool forces_routing(const ModelConfig& model) {
  if (num_moe_layers(model) == 0) return false;
  return std::visit([](const auto& c) { return c.gate.force != Force::kNone; }, model.moe.router);
}

std::string forced_line(const ModelConfig& model) {
  if (!forces_routing(model)) return {};
  const Force force = std::visit([](const auto& c) { return c.gate.force; }, model.moe.router);
  return "model.moe.router.force is " + to_text(force) +
         ", an aid for benchmarks: the router learns nothing of use, and the speed is no training "
         "speed. Every step line says FORCED";
}

std::string attention_line(const ModelConfig& model, Precision precision, int64_t longest,
                           const c10::Device& device) {
  if (!device.is_cuda()) return {};
  if (model.attn_dropout > 0) return "attention: products and a softmax, for model.attn_dropout";
  const at::ScalarType type = type_of(precision);
  std::string out;
  for (int64_t i = 0; i < model.layers; ++i) {
    const LayerConfig layer = layer_config(model, i);
    if (!layer.attention) continue;
    AttentionHeads heads{type, layer.head_dim, layer.head_dim, longest};
    if (model.mla) heads.value_dim = model.mla->value_dim;
    const std::string why = why_not_cudnn(heads, device);
    if (!why.empty()) return "attention: PyTorch's: " + why;
    out = "attention: cuDNN's, the same bits each time";
  }
  return out;
}

std::string causality_line(const ModelConfig& model) {
  if (num_moe_layers(model) == 0 || is_causal(model.moe.router)) return "";
  return "not causal: the router " + std::string(model.moe.router.kind()) +
         " selects among all tokens of a microbatch, later ones included, so losses and generated "
         "text are not those of an autoregressive model";
}

std::string masked_line(int64_t step) {
  return "step " + std::to_string(step) +
         ": all targets are masked, so nothing is learned. data build --learn selects the roles of "
         "a "
         "chat that count; troupe data inspect --show N prints them";
}

}  // namespace troupe
