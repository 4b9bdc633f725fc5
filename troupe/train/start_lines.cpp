#include "troupe/train/start_lines.h"

#include "troupe/core/text/text.h"
#include "troupe/ops/attention/attention_cudnn.h"

namespace troupe {
namespace {

std::string losses_of(const BalanceConfig& config) {
  std::string out;
  BalanceConfig::visit(config, [&](std::string_view name, const auto& value) {
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
         ": nothing shares the tokens out among the experts; "
         "model.moe.router.balance.aux_loss=0.01 "
         "would";
}

std::string attention_line(const ModelConfig& model, Precision precision, int64_t longest,
                           const c10::Device& device) {
  if (!device.is_cuda()) return {};
  if (model.attn_dropout > 0) return "attention: products and a softmax, for model.attn_dropout";
  const at::ScalarType type = precision == Precision::kBf16   ? at::kBFloat16
                              : precision == Precision::kFp16 ? at::kHalf
                                                              : at::kFloat;
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
  if (num_moe_layers(model) == 0 || model.moe.router.kind() != "expert_choice") return "";
  return "not causal: the router expert_choice chooses among all tokens of a microbatch, later "
         "ones too, so losses and generated text are not those of a model that reads from left to "
         "right";
}

std::string masked_line(int64_t step) {
  return "step " + std::to_string(step) +
         ": nothing is learnt, all its targets are masked. Chats teach what the role of data build "
         "--learn says; troupe data inspect --show N shows it";
}

}  // namespace troupe
