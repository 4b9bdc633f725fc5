// Top-k of a softmax over the experts' logits (rules R4, R5, R7 to R9): Switch, GShard, Mixtral,
// DBRX, OLMoE, Qwen-MoE, DeepSeek-V2.
//   after    I = top-k of z, p = softmax over the k chosen logits                    (R4)
//   before   I = top-k of s = softmax of z over all experts, p = s[I]                (R5)
// p is then divided by its p_norm-norm if asked (R7) and multiplied by `scale` (R8). With k = 1
// `after` would give p = 1 and no gradient: refused. Unset, the order is `after`, and `before` for
// k = 1.
#pragma once

#include "troupe/nn/moe/routers/gate.h"

namespace troupe {

enum class SoftmaxOrder { kAuto, kAfter, kBefore };
constexpr auto names_of(SoftmaxOrder) {
  return std::array{Named{"auto", SoftmaxOrder::kAuto}, Named{"after", SoftmaxOrder::kAfter},
                    Named{"before", SoftmaxOrder::kBefore}};
}

struct TopkSoftmaxRouting {
  static constexpr std::string_view kKind = "topk_softmax";
  static constexpr std::string_view kHelp =
      "the K largest of a softmax over the experts (Switch, Mixtral, OLMoE)";
  SoftmaxOrder order = SoftmaxOrder::kAuto;
  double p_norm = 0;  // 0: off
  double scale = 1;
  GroupsConfig limit;
  GateConfig gate;
  BalanceConfig balance{.aux_loss = 1e-2};

  static void visit(auto& c, auto&& f) {
    f("order", c.order, "Softmax after the top-k choice (weights sum to 1) or before it.");
    f("p_norm", c.p_norm, "p of the norm by which a token's weights are divided; 0: off.");
    f("scale", c.scale, "Factor on the router weights.");
    f("limit", c.limit,
      "Group-limited routing: a token chooses within its best groups of experts.");
    GateConfig::visit(c.gate, f);
    f("balance", c.balance, "Load balancing losses; coefficients, 0: off.");
  }
  std::unique_ptr<Router> build(const RouterShape& shape) const;
  // Whether a token's weights do, before `scale`: the softmax over the chosen logits is that over
  // all of them, divided by its sum.
  bool sums_to_one(int64_t top_k) const {
    return p_norm == 1 || (order != SoftmaxOrder::kBefore && top_k > 1);
  }
};

// How weights are made from a softmax in that order; refuses `after` with one choice (R4).
enum class Weighting;
Weighting softmax_weighting(SoftmaxOrder order, double p_norm, const RouterShape& shape);

}  // namespace troupe
