// Auxiliary losses of a MoE layer, as values with gradients; nothing is kept globally (rule G6).
//
// For a set of N valid tokens with counts c_e (the plain top-k of r: before dropping, without bias
// and groups) and P_e = sum over the tokens of r_te, where r is the softmax over all E experts, or
// the other scores divided by their row sum:
//
//   LB = E / (k N^2) sum_e c_e P_e = E sum_e f_e P_e / N,     f_e = c_e / (k N)
//
// The gradient goes through P alone. LB is 1 where all c are equal, and where all r are 1 / E.
// Counts stay integers until the product, which is in f64. N = 0 gives 0.
//
//   A1 aux      a LB over G and this microbatch
//   A2 seq      a mean_b LB_b, one sequence over G each
//   A3 global   a LB with f over all ranks and the step's microbatches so far, or the last step
//   A4 batched  w / L LB; summed over the model's L MoE layers that is MegaBlocks' loss. With the
//               scope `all`, f is over the microbatches that all ranks have at a time
//   A6 z        coefficient / N sum_t lse(z_t)^2 over the valid tokens of G
//   A9 device, communication   LB over the groups of R9
//
// Under several ranks each value is this rank's share: P is its own, c is the scope's, N is of G (of
// this rank with the scope `rank`). So A7's mean over replicas is that over one process's
// microbatches where f is the same. All ranks make the same sums, whose sizes no rank's rows decide:
// over G, whose ranks have the same sequences, by sequence; over all ranks by expert alone.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "troupe/core/text/text.h"
#include "troupe/distributed/params/param.h"
#include "troupe/nn/parts/context.h"

namespace troupe {

enum class GlobalFractions { kRunning, kPrevious };  // A3: the step so far, or the last whole step
constexpr auto names_of(GlobalFractions) {
  return std::array{Named{"running", GlobalFractions::kRunning},
                    Named{"previous", GlobalFractions::kPrevious}};
}

enum class LossScope { kRank, kGroup, kAll };
constexpr auto names_of(LossScope) {
  return std::array{Named{"rank", LossScope::kRank}, Named{"group", LossScope::kGroup},
                    Named{"all", LossScope::kAll}};
}

// Coefficients; 0: off. Several may be on together (A5).
struct BalanceConfig {
  double aux_loss = 0;
  double seq_loss = 0;
  double global_loss = 0;
  GlobalFractions global_fractions = GlobalFractions::kRunning;
  double batched_loss = 0;
  LossScope batched_scope = LossScope::kRank;
  double device_loss = 0;
  double communication_loss = 0;
  double z_loss = 0;

  static void visit(auto& c, auto&& f) {
    f("aux_loss", c.aux_loss,
      "Load balancing loss per layer and microbatch, 1 when balanced; usual coefficient 0.01.");
    f("seq_loss", c.seq_loss, "Load balancing loss per sequence (DeepSeek-V3: 1e-4).");
    f("global_loss", c.global_loss, "Load balancing loss over the global batch (Qwen3: 1e-3).");
    f("global_fractions", c.global_fractions,
      "Expert fractions for global_loss: of the step so far, or of the previous step.");
    f("batched_loss", c.batched_loss,
      "Load balancing loss averaged over all MoE layers, as in MegaBlocks (0.1).");
    f("batched_scope", c.batched_scope, "Tokens that batched_loss counts.");
    f("device_loss", c.device_loss, "Load balancing loss over expert groups (DeepSeek-V2).");
    f("communication_loss", c.communication_loss,
      "Balance loss of the tokens sent to each group (DeepSeek-V2).");
    f("z_loss", c.z_loss,
      "Router z-loss: mean squared logsumexp of the logits; usual coefficient 1e-3.");
  }
  bool balances() const {
    return aux_loss != 0 || seq_loss != 0 || global_loss != 0 || batched_loss != 0 ||
           device_loss != 0 || communication_loss != 0;
  }
};

// What the losses read of one routing; ATen tensors where x lives. The z-loss alone needs neither
// counts nor probabilities: both may then be undefined.
struct BalanceSums {
  at::Tensor counts_BE;    // int64  plain top-k, for each sequence of this rank
  at::Tensor probs_BE;     // sum of r over the valid tokens, with its gradient
  at::Tensor tokens_B;     // int64  valid tokens
  at::Tensor ids_TK;       // int32  as chosen (communication loss alone)
  at::Tensor lse_squares;  // scalar: sum over valid tokens of lse(z)^2, with its gradient
};

struct LossSizes {
  int64_t top_k = 1;
  int64_t moe_layers = 1;  // L, of the whole model (A4)
  int64_t groups = 1;      // g and a of R9 (A9)
  int64_t keep_groups = 1;
  int64_t group_ranks = 1;  // |G|
};

inline constexpr std::array kMoeLossNames = {"aux",    "seq",           "global", "batched",
                                             "device", "communication", "z"};

struct MoeLoss {
  std::string name;        // one of kMoeLossNames
  at::Tensor value;        // f64 scalar: coefficient included, with its gradient
  double coefficient = 1;  // value / coefficient is what is reported (A8)

  double reported() const { return value.item<double>() / coefficient; }
};

// A3's counts: state of the model, one for each layer.
class FractionTracker {
 public:
  explicit FractionTracker(int64_t experts);

  // Adds a microbatch (sums over all ranks) and returns f [E], f64: over the microbatches of the
  // step so far, or those of the previous step. Of none before, 1 / E: a loss without a gradient,
  // for which no layout has other numbers.
  at::Tensor add(const at::Tensor& counts_E, const at::Tensor& tokens, int64_t top_k,
                 GlobalFractions which);
  void end_of_step();  // also after a skipped step
  void forget();       // what was added since: the step is done again
  void for_each_of_step(const std::function<void(at::Tensor&)>& f) {  // Router::for_each_of_step
    for (at::Tensor* x : {&counts_E_, &tokens_, &now_E_}) f(*x);
  }

  static void visit(auto& m, auto&& f) { f("previous_fractions", m.previous_); }

 private:
  at::Tensor counts_E_, tokens_;  // f64; undefined before the step's first microbatch
  Param previous_;                // [E] f32 state, all 0: none yet
  at::Tensor now_E_;
};

// [B, E] or [E] counts, and tokens [B] or a scalar, to f; N = 0 gives 0.
at::Tensor fractions(const at::Tensor& counts, const at::Tensor& tokens, int64_t top_k);
// LB of each row: E sum_e f P / N.
at::Tensor load_balance(const at::Tensor& fractions, const at::Tensor& probs,
                        const at::Tensor& tokens);
// Tokens that chose at least one expert of each group: int64 [g].
at::Tensor touched_groups(const at::Tensor& ids_TK, int64_t experts, int64_t groups);

// All losses that are on. Empty unless the context records.
std::vector<MoeLoss> moe_losses(const BalanceConfig& config, const BalanceSums& sums,
                                const LossSizes& sizes, const Context& context,
                                FractionTracker& tracker);

}  // namespace troupe
