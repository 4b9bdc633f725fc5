// The loss over a vocabulary whose rows are cut over ranks, each with tokens of its own (rules A7,
// D1 of the losses; ops/cross_entropy.h has it for one rank):
//
//   z_iv = x_i . W_v     lse_i = ln sum_v exp(z_iv)
//   sum_i w_i (lse_i - z_i,target + z_loss lse_i^2)
//
// For each chunk of tokens, some of every rank: x is gathered, each rank makes the logits of its
// rows, and of each token its largest logit m, sum exp(z - m) and the target's logit are exchanged;
// lse adds the ranks' sums in rank order. Each rank then has the gradient of its logits: its part
// of dx is scattered, its part of dW added. As with one rank, gradients are made in the forward, so
// that logits take chunk V / ranks elements and nothing of them is kept.
#pragma once

#include <ATen/core/Tensor.h>

#include "troupe/distributed/group/token_sharding.h"
#include "troupe/ops/cross_entropy.h"

namespace troupe {

struct TableRows {
  at::Tensor weight_VD;  // own rows of the table
  int64_t from = 0;      // global number of the first
  int64_t vocab = 0;     // targets are below this
};

struct TokenCount {
  int64_t all = 0;    // of all ranks
  int64_t chunk = 0;  // of which so many have their logits made together
};

// Own x [t, D] and target int64 [t]; weights in `options` are of own tokens too. Returns the sum of
// own tokens' losses. Gradients for x and for the rows. A target outside [0, vocab) that is not
// `ignore` makes its token's loss NaN.
at::Tensor split_cross_entropy(const TokenSharding& sharding, const at::Tensor& x_tD,
                               const TableRows& rows, const at::Tensor& target_t,
                               const CrossEntropyOptions& options, const TokenCount& tokens);

}  // namespace troupe
