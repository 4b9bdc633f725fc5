// From logits to choices, weights and what the losses read: the rules R4 to R9 in one place, for
// all routers that choose by token.
#pragma once

#include "troupe/nn/moe/routers/router.h"
#include "troupe/nn/moe/routers/topk_softmax.h"
#include "troupe/ops/route.h"

namespace troupe {

using RouterScore = Score;
using RouterWeighting = Weighting;

struct SelectOptions {
  int64_t top_k = 1;
  RouterScore score = RouterScore::kSoftmax;
  RouterWeighting weighting = RouterWeighting::kRaw;
  double p_norm = 0;        // R7
  double scale = 1;         // R8
  GroupsConfig limit = {};  // R9
  // Moves the selection alone: by s + bias (R10), by z - beta (R11). Undefined: none.
  at::Tensor bias_E = {};
  at::Tensor beta_E = {};
  // The choices, where they are made elsewhere (R14, R15, R3): [T, K] int32. Undefined: none.
  at::Tensor given_ids_TK = {};
  bool balance = true;  // false: no balance loss reads counts_BE and probs_BE, which are not made
};

// z [T, E] in f32 or f64. Ties go to the lower expert (G2). Invalid tokens get ids -1, weights 0,
// and are in no sum.
RouterOutput select(const at::Tensor& z_TE, const Tokens& tokens, const SelectOptions& options);

// What the routers with a gate do: logits, choices (or those of a replay), benchmark aids. Balance
// sums are made where `options` asks for them and the context records losses.
RouterOutput route_logits(const Gate& gate, const Gated& gated, const Tokens& tokens,
                          const Context& context, SelectOptions options);
RouterOutput route_gated(const Gate& gate, const at::Tensor& x_TD, const Tokens& tokens,
                         const Context& context, SelectOptions options);

}  // namespace troupe
