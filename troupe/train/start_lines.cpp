#include "troupe/train/start_lines.h"

#include "troupe/core/text.h"

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

}  // namespace troupe
