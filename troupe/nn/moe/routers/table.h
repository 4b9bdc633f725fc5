// Routing by a table over the vocabulary (R14, hash layers): a token's id fixes its experts, the
// logits weigh them: p = scale softmax(z)[I], or the normalized independent scores. No balance loss
// and no bias; the z-loss is allowed.
#pragma once

#include "troupe/nn/moe/routers/gate.h"
#include "troupe/nn/moe/routers/select.h"

namespace troupe {

constexpr auto names_of(RouterScore) {
  return std::array{Named{"softmax", RouterScore::kSoftmax},
                    Named{"sigmoid", RouterScore::kSigmoid},
                    Named{"sqrtsoftplus", RouterScore::kSqrtSoftplus}};
}

struct TableRouting {
  static constexpr std::string_view kKind = "table";
  static constexpr std::string_view kHelp = "a token's id determines its experts (hash layers)";
  // "round_robin": (id + j) mod E for choice j; else a file of int32 [vocabulary, K].
  std::string table = "round_robin";
  RouterScore score = RouterScore::kSoftmax;
  double scale = 1;
  double z_loss = 0;
  GateConfig gate;

  static void visit(auto& c, auto&& f) {
    f("table", c.table, "Expert table: round_robin, or a file of int32 [vocab, K].");
    f("score", c.score, "Score function that weighs the choices.");
    f("scale", c.scale, "Factor on the router weights.");
    f("z_loss", c.z_loss, "Router z-loss coefficient: mean squared logsumexp of the logits.");
    GateConfig::visit(c.gate, f);
  }
  std::unique_ptr<Router> build(const RouterShape& shape) const;
};

// int32 [V, K] of experts: throws on an id outside [0, E) or twice in a row, naming the row.
void check_table(const at::Tensor& table_VK, int64_t experts);

}  // namespace troupe
