// The mixture-of-experts layer:
//
//   y_t = sum_j p_tj F_{I_tj}(x_t) + shared(x_t) + b_out      over the slots j that are not dropped
//
// Three siblings, each replaceable alone: the router chooses (nn/routers), the dispatcher moves
// rows (distributed/dispatch/dispatcher.h), the experts compute (nn/moe/experts.h). The order of a
// call: jitter, logits, forced logits, select and weigh, losses and counters (of undropped
// choices), capacity, dispatch, experts, combine, shared expert, bias. Between the begin of a
// transfer and its end, where rows go to other ranks: the shared expert (shared.overlap), in
// forward and in backward; and, while gradients of rows go back, those of the experts' weights.
//
// Inputs have 1, 2 or 3 dimensions, [D], [T, D] or [B, S, D], with the same values (L1). T may be
// 0. With `latent`, rows are projected to that width before they are sent and back after the
// combine (L3); router and shared expert see the full width.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troupe/distributed/dispatch/dispatcher.h"
#include "troupe/nn/moe/expert_capacity.h"
#include "troupe/nn/moe/experts.h"
#include "troupe/nn/moe/moe_counts.h"
#include "troupe/nn/moe/moe_losses.h"
#include "troupe/nn/moe/moe_stats.h"
#include "troupe/nn/moe/routers/routers.h"
#include "troupe/nn/moe/shared_expert.h"

namespace troupe {

struct MoeConfig {
  int64_t experts = 0;       // E; 0: the model is dense
  int64_t top_k = 2;         // K
  std::string layers = "1";  // which layers are MoE layers (L4, moe_pattern.h)
  ExpertsConfig ffn;
  RouterConfig router;
  int64_t table_layers = 0;  // the first n MoE layers are routed by `table`, not by `router` (R14)
  TableRouting table;
  CapacityConfig capacity;
  SharedConfig shared;
  int64_t latent = 0;        // l; 0: experts see the full width
  bool output_bias = false;  // b_out, zero at the start, one for all experts
  bool return_bias = false;  // returned beside y instead of added (Megatron's convention)

  static void visit(auto& c, auto&& f) {
    f("experts", c.experts, "Number of experts per layer, E; 0: dense model.");
    f("top_k", c.top_k, "Experts per token, K (1 to E); 1 requires router.order before.");
    f("layers", c.layers,
      "Layers with experts: \"1\" all, \"2\" every second, or a pattern such as \"[0]*3+[1]*21\".");
    ExpertsConfig::visit(c.ffn, f);
    f("router", c.router, "Router.");
    f("table_layers", c.table_layers, "Number of leading MoE layers with table routing.");
    f("table", c.table, "Table routing: a token's id determines its experts.");
    f("capacity", c.capacity, "Expert capacity; off by default: no token is dropped.");
    f("shared", c.shared, "Shared expert, applied to every token.");
    f("latent", c.latent, "Latent width to which rows are projected for the experts; 0: off.");
    f("output_bias", c.output_bias, "One bias added to the sum of all experts.");
    f("return_bias", c.return_bias, "Returns that bias to the caller instead of adding it.");
  }
  void become_null() { *this = MoeConfig(); }  // `moe: null`: dense, also over a preset's experts
};

struct MoeShape {       // a model's layers come from moe_shape (nn/config/config.h)
  int64_t width;        // D
  int64_t layers;       // of the model: scales W2's initial values
  int64_t moe_layers;   // of the model: A4
  int64_t moe_index;    // which of the model's MoE layers this is
  int64_t vocab;        // table routing; 0: none
  int64_t group_ranks;  // |G|

  // A layer that is no model's: the only one, on one rank, without a vocabulary.
  static MoeShape alone(int64_t width) {
    return {
        .width = width, .layers = 1, .moe_layers = 1, .moe_index = 0, .vocab = 0, .group_ranks = 1};
  }
};

RouterConfig router_of(const MoeConfig& config, const MoeShape& shape);  // of this layer (R14)
void validate(const MoeConfig& config, const MoeShape& shape);
MoeSizes sizes_of(const MoeConfig& config, const MoeShape& shape);  // for counting

struct MoeOutput {
  at::Tensor y;     // as x
  at::Tensor bias;  // [D] with return_bias, else undefined
  std::vector<MoeLoss> losses;
  MoeStats stats;
  at::Tensor ids_TK, logits_TE;  // the choices and what they were made of, for a trace (R15)
};

class MoeLayer {
 public:
  // Without a dispatcher: all experts here. Without a router: the configured one; with one of the
  // caller's own (examples/router) config.router is not read.
  MoeLayer(const MoeConfig& config, const MoeShape& shape,
           std::unique_ptr<Dispatcher> dispatcher = nullptr,
           std::unique_ptr<Router> router = nullptr, const TensorParts& parts = {});

  MoeOutput forward(const at::Tensor& x, const Tokens& tokens, const Context& context);
  // C7: rows since the last call that had no room here, in all forwards, an int64 scalar; undefined
  // without a budget. If the sum over layers and ranks is not 0 the step is to be done again:
  // forget_step(), and the same forwards with Context::budgeted off.
  at::Tensor lost_rows();
  // As if the forwards since the last step had not been; each rank calls.
  void forget_step(const SumOver& all_sum = {});
  // Router::for_each_of_step of all parts.
  void for_each_of_step(const VisitTensor& f);
  // After each optimizer step, also a skipped one: biases and counters (R10, R11, A3).
  void end_of_step(const SumOver& all_sum = {}, bool skipped = false);

  // Switches to a new placement (Dispatcher::place); the caller moves the experts' weights.
  void place(const ExpertPlacement& placement);

  Router& router() { return *router_; }
  Experts& experts() { return experts_; }
  SharedExpert* shared() { return shared_ ? &*shared_ : nullptr; }  // null: none
  const Dispatcher& dispatcher() const { return *dispatcher_; }

  static void visit(auto& m, auto&& f) {
    f("router", *m.router_);
    f("experts", m.experts_);
    f("shared", m.shared_);
    f("latent_in", m.latent_in_);
    f("latent_out", m.latent_out_);
    f("bias", m.bias_);
    f("balance", m.fractions_);
  }

 private:
  struct Mixture {
    at::Tensor y_TD, saturated;  // saturated: as ExpertsOutput's
  };
  // For whom a mixture is: `all` tokens of all ranks that share them, as SharedExpert::forward()
  // wants them, and the context of the own ones.
  struct Caller {
    int64_t all;
    Context context;
  };
  Mixture mixture(const at::Tensor& x_TD, const Routed& routed, const Caller& caller);
  Mixture mixture_twice(const at::Tensor& x_TD, const Routed& routed, const Caller& caller);
  LossSizes loss_sizes() const;

  MoeConfig config_;
  MoeShape shape_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<Dispatcher> dispatcher_;
  Experts experts_;
  std::optional<SharedExpert> shared_;
  std::optional<Param> latent_in_, latent_out_;  // [l, D], [D, l]
  std::optional<Param> bias_;                    // [D]
  FractionTracker fractions_;
  at::Tensor lost_;  // rows without room so far
};

}  // namespace troupe
