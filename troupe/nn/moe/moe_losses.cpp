#include "troupe/nn/moe/moe_losses.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "troupe/core/check.h"

namespace troupe {
namespace {

// Counts and tokens of a scope, [B, E] and [B] or [E] and a scalar.
struct Totals {
  at::Tensor counts, tokens;
  Totals over_sequences() const { return {counts.sum(0), tokens.sum()}; }
};

// In one collective.
Totals total_over(const SumOver& sum, const Totals& own) {
  if (!sum) return own;
  if (!own.counts.defined()) return {{}, sum(own.tokens)};
  const int64_t E = own.counts.size(-1);
  const at::Tensor both = sum(at::cat({own.counts, own.tokens.unsqueeze(-1)}, -1));
  return {both.narrow(-1, 0, E), both.select(-1, E)};
}

class Losses {
 public:
  Losses(const BalanceConfig& config, const BalanceSums& sums, const LossSizes& sizes,
         const Context& context)
      : c_(config), s_(sums), n_(sizes), context_(context) {}

  std::vector<MoeLoss> all(FractionTracker& tracker) {
    group_ = total_over(context_.group_sum, {s_.counts_BE, s_.tokens_B});
    tokens_ = group_.tokens.sum();
    if (c_.balances()) balance(tracker);
    if (c_.z_loss != 0) {
      add("z", s_.lse_squares.to(at::kDouble) / tokens_.to(at::kDouble).clamp_min(1), c_.z_loss);
    }
    return std::move(out_);
  }

 private:
  void balance(FractionTracker& tracker) {
    TROUPE_CHECK(s_.probs_BE.defined(), "a balance loss is on, and the router made no sums for it");
    E_ = s_.probs_BE.size(1);
    const at::Tensor probs_E = s_.probs_BE.sum(0), counts_E = group_.counts.sum(0);
    if (c_.aux_loss != 0) add("aux", lb(counts_E, probs_E, n_.top_k), c_.aux_loss);
    if (c_.seq_loss != 0) {
      const at::Tensor f = fractions(group_.counts, group_.tokens, n_.top_k);
      add("seq", load_balance(f, s_.probs_BE, group_.tokens).mean(), c_.seq_loss);
    }
    const bool batched_all = c_.batched_loss != 0 && c_.batched_scope == LossScope::kAll;
    Totals all;
    if (c_.global_loss != 0 || batched_all) all = over_all();
    if (c_.global_loss != 0) {
      const at::Tensor f = tracker.add(all.counts, all.tokens, n_.top_k, c_.global_fractions);
      add("global", load_balance(f, probs_E, tokens_), c_.global_loss);
    }
    if (c_.batched_loss != 0) {
      add("batched", batched(all, probs_E) / static_cast<double>(n_.moe_layers), c_.batched_loss);
    }
    if (c_.device_loss != 0) {
      add("device", lb(merged(counts_E), merged(probs_E), n_.top_k), c_.device_loss);
    }
    if (c_.communication_loss != 0) {
      const at::Tensor touched =
          summed(context_.group_sum, touched_groups(s_.ids_TK, E_, n_.groups));
      add("communication", lb(touched, merged(probs_E), n_.keep_groups), c_.communication_loss);
    }
  }

  at::Tensor lb(const at::Tensor& counts, const at::Tensor& probs, int64_t k) const {
    return load_balance(fractions(counts, tokens_, k), probs, tokens_);
  }

  at::Tensor merged(const at::Tensor& x_E) const {
    return x_E.reshape({n_.groups, E_ / n_.groups}).sum(1);
  }

  Totals own() const { return Totals{s_.counts_BE, s_.tokens_B}.over_sequences(); }
  // A replica may have fewer sequences, or none: they are added up before.
  Totals over_all() const { return total_over(context_.all_sum, own()); }

  at::Tensor batched(const Totals& all, const at::Tensor& probs_E) const {
    if (c_.batched_scope == LossScope::kRank) {  // one of |G| means
      const Totals t = own();
      return load_balance(fractions(t.counts, t.tokens, n_.top_k), probs_E, t.tokens) /
             static_cast<double>(n_.group_ranks);
    }
    const Totals t = c_.batched_scope == LossScope::kAll ? all : group_.over_sequences();
    return load_balance(fractions(t.counts, t.tokens, n_.top_k), probs_E, tokens_);
  }

  void add(const char* name, const at::Tensor& value, double coefficient) {
    out_.push_back({name, value * coefficient, coefficient});
  }

  const BalanceConfig& c_;
  const BalanceSums& s_;
  const LossSizes& n_;
  const Context& context_;
  Totals group_;
  at::Tensor tokens_;  // N of G
  int64_t E_ = 0;
  std::vector<MoeLoss> out_;
};

}  // namespace

at::Tensor fractions(const at::Tensor& counts, const at::Tensor& tokens, int64_t top_k) {
  at::Tensor n = tokens.to(at::kDouble).clamp_min(1) * static_cast<double>(top_k);
  if (counts.dim() == 2) n = n.unsqueeze(1);
  return counts.to(at::kDouble) / n;
}

at::Tensor load_balance(const at::Tensor& fractions, const at::Tensor& probs,
                        const at::Tensor& tokens) {
  const at::Tensor n = tokens.to(at::kDouble).clamp_min(1);
  return (fractions * probs.to(at::kDouble)).sum(-1) * static_cast<double>(probs.size(-1)) / n;
}

at::Tensor touched_groups(const at::Tensor& ids_TK, int64_t experts, int64_t groups) {
  TROUPE_CHECK(groups >= 1 && experts % groups == 0, "experts", experts, "groups", groups);
  const at::Tensor ids = ids_TK.to(at::kLong);
  const at::Tensor group =
      ids.div(experts / groups, "floor").masked_fill(ids.lt(0), groups);  // the last column: none
  at::Tensor touched = at::zeros({ids.size(0), groups + 1}, ids.options());
  touched.scatter_(1, group, 1);
  return touched.narrow(1, 0, groups).sum(0);
}

FractionTracker::FractionTracker(int64_t experts)
    : previous_(Param::of({experts}, {.kind = Init::kZero}).as_state()) {}

at::Tensor FractionTracker::add(const at::Tensor& counts_E, const at::Tensor& tokens, int64_t top_k,
                                GlobalFractions which) {
  const at::NoGradGuard no_grad;
  counts_E_ = counts_E_.defined() ? counts_E_ + counts_E : counts_E.to(at::kDouble);
  tokens_ = tokens_.defined() ? tokens_ + tokens : tokens.to(at::kDouble);
  now_E_ = fractions(counts_E_, tokens_, top_k);
  if (which == GlobalFractions::kRunning) return now_E_;
  if (!previous_.value.defined()) previous_.allocate(counts_E.options()), previous_.value.zero_();
  const at::Tensor before = previous_.value.to(at::kDouble);
  const at::Tensor even = at::full_like(before, 1 / static_cast<double>(before.size(0)));
  return before.where(before.sum() > 0, even);  // chosen on the device: no copy to the host
}

void FractionTracker::end_of_step() {
  if (now_E_.defined() && previous_.value.defined()) previous_.value.copy_(now_E_);
  forget();
}

void FractionTracker::forget() {
  counts_E_ = tokens_ = now_E_ = at::Tensor();
}

std::vector<MoeLoss> moe_losses(const BalanceConfig& config, const BalanceSums& sums,
                                const LossSizes& sizes, const Context& context,
                                FractionTracker& tracker) {
  if (!context.records() || (!config.balances() && config.z_loss == 0)) return {};
  return Losses(config, sums, sizes, context).all(tracker);
}

}  // namespace troupe
