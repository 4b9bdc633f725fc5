#include "troupe/nn/model/split_cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

class SplitHead {
 public:
  SplitHead(const TokenSharding& sharding, const TableRows& rows,
            const CrossEntropyOptions& options)
      : sharding_(sharding),
        rows_(rows),
        o_(options),
        z_loss_(static_cast<float>(options.z_loss)) {}

  // x [n, D], target and weight [n] of every rank, n the same: own tokens' loss. The gradients go
  // into grad_x [n, D] and onto grad_weight, where these are defined.
  at::Tensor chunk(const at::Tensor& x, const at::Tensor& target, const at::Tensor& weight,
                   const at::Tensor& grad_x, const at::Tensor& grad_weight) const {
    const int64_t n = x.size(0), c = sharding_.ranks() * n, D = x.size(1);
    const auto wide = wide_type(x);
    const at::Tensor x_cD = sharding_.all_of(x).view({c, D});
    const at::Tensor target_c = sharding_.all_of(target).view(c);
    const at::Tensor w_c = sharding_.all_of(weight).view(c);
    const at::Tensor z = at::mm(x_cD, rows_.weight_VD.t()).to(wide);  // [c, V_r]
    const Position at = position(target_c, z.size(1));
    const auto [lse, logit] = log_sum(z, at);
    const at::Tensor counted = target_c.ne(o_.ignore);
    // What stands before softmax and before the one of the target.
    at::Tensor factor = at::where(counted, w_c, at::zeros_like(w_c));
    const at::Tensor outside = target_c.ge(rows_.vocab).logical_or(target_c.lt(0));
    factor.masked_fill_(counted.logical_and(outside), std::numeric_limits<double>::quiet_NaN());
    if (grad_x.defined() || grad_weight.defined()) {
      at::Tensor g = (z - lse.unsqueeze(1)).exp_();
      g.mul_(((1 + 2 * z_loss_ * lse) * factor).unsqueeze(1));
      if (g.size(1) > 0) {
        g.scatter_add_(1, at.row.unsqueeze(1), (-factor * at.here).unsqueeze(1));
      }
      const at::Tensor g_own_type = g.to(x.scalar_type());
      if (grad_x.defined())
        grad_x.copy_(sharding_.reduce_scatter_no_grad(at::mm(g_own_type, rows_.weight_VD)));
      if (grad_weight.defined()) grad_weight.add_(at::mm(g_own_type.t(), x_cD));
    }
    const at::Tensor loss = (lse - logit + z_loss_ * lse * lse) * factor;
    return loss.narrow(0, sharding_.rank() * n, n).sum();
  }

 private:
  // For each token's target, its row here, and whether it is here (1, else 0).
  struct Position {
    at::Tensor row, here;
  };
  Position position(const at::Tensor& target, int64_t count) const {
    const at::Tensor row = target - rows_.from;
    const at::Tensor here = row.ge(0).logical_and(row.lt(count));
    return {row.clamp(0, std::max<int64_t>(count - 1, 0)), here.to(wide_type(rows_.weight_VD))};
  }

  // A part whose logits are all -inf, or that has none, adds nothing.
  static at::Tensor finite(const at::Tensor& most) {
    return most.masked_fill(most.eq(-std::numeric_limits<double>::infinity()), 0);
  }

  // Log-sum-exp of all ranks' logits, and the target's logit.
  std::pair<at::Tensor, at::Tensor> log_sum(const at::Tensor& z, const Position& at) const {
    const double none = -std::numeric_limits<double>::infinity();
    at::Tensor most = at::full({z.size(0)}, none, z.options()), sum = at::zeros_like(most);
    at::Tensor logit = at::zeros_like(most);
    if (z.size(1) > 0) {
      most = std::get<0>(z.max(1));
      sum = (z - finite(most).unsqueeze(1)).exp_().sum(1);
      const at::Tensor own = z.gather(1, at.row.unsqueeze(1)).squeeze(1);
      logit = at::where(at.here.gt(0), own, logit);
    }
    const at::Tensor all = sharding_.all_of(at::stack({most, sum, logit}));  // [ranks, 3, c]
    const at::Tensor top = finite(std::get<0>(all.select(1, 0).max(0)));
    at::Tensor total = at::zeros_like(top);
    at::Tensor target = at::zeros_like(top);
    for (int64_t r = 0; r < sharding_.ranks(); ++r) {
      total = total + all[r][1] * (all[r][0] - top).exp();
      target = target + all[r][2];
    }
    return {top + total.log(), target};
  }

  const TokenSharding& sharding_;
  const TableRows& rows_;
  const CrossEntropyOptions& o_;
  const double z_loss_;  // rounded as ops/cross_entropy does
};

}  // namespace

at::Tensor split_cross_entropy(const TokenSharding& sharding, const at::Tensor& x_tD,
                               const TableRows& rows, const at::Tensor& target_t,
                               const CrossEntropyOptions& o, const TokenCount& tokens) {
  TROUPE_CHECK(rows.weight_VD.size(1) == x_tD.size(1), "split_cross_entropy: rows of",
               rows.weight_VD.sizes(), "for x of", x_tD.sizes());
  const auto wide = x_tD.options().dtype(wide_type(x_tD)).requires_grad(false);
  const bool graph = wants_grad({x_tD, rows.weight_VD});
  at::Tensor loss, grad_x, grad_weight;
  {
    const at::NoGradGuard no_grad;
    const int64_t most = (tokens.all + sharding.ranks() - 1) / sharding.ranks();
    const int64_t each = std::max<int64_t>(1, tokens.chunk / sharding.ranks());
    const at::Tensor weight = o.weight_T ? *o.weight_T : at::ones({x_tD.size(0)}, wide);
    const at::Tensor x = padded_rows(x_tD.detach(), most), w = padded_rows(weight, most);
    const at::Tensor target = padded_rows(target_t, most, static_cast<double>(o.ignore));
    if (graph && x_tD.requires_grad()) grad_x = at::empty(x.sizes(), x.options());
    if (graph && rows.weight_VD.requires_grad()) {
      grad_weight = at::zeros(rows.weight_VD.sizes(), wide);
    }
    const TableRows values = {rows.weight_VD.detach(), rows.from, rows.vocab};
    const SplitHead head(sharding, values, o);
    loss = at::zeros({}, wide);
    for (int64_t begin = 0; begin < most; begin += each) {
      const int64_t n = std::min(each, most - begin);
      const auto part = [&](const at::Tensor& all) { return all.narrow(0, begin, n); };
      loss += head.chunk(part(x), part(target), part(w),
                         grad_x.defined() ? part(grad_x) : at::Tensor(), grad_weight);
    }
    if (grad_x.defined()) grad_x = grad_x.narrow(0, 0, x_tD.size(0));
  }
  record({.name = "split_cross_entropy",
          .inputs = {x_tD, rows.weight_VD},
          .outputs = {loss},
          .saved = {grad_x, grad_weight},
          .backward = [type = rows.weight_VD.scalar_type()](const Gradients& g) -> TensorList {
            const at::Tensor& factor = g.outputs[0];
            return {g.needs[0] ? g.saved[0] * factor.to(g.saved[0].scalar_type()) : at::Tensor(),
                    g.needs[1] ? (g.saved[1] * factor).to(type) : at::Tensor()};
          }});
  return loss;
}

}  // namespace troupe
