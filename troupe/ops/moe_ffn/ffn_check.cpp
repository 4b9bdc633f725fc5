#include "troupe/ops/moe_ffn/ffn_check.h"

#include <optional>

#include "troupe/ops/support/plan_check.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

FfnSizes check_experts(const at::Tensor& x, const ExpertWeights& e, const WeightLayout& l) {
  check_sizes(x, {-1, -1}, "moe_ffn: x");
  check_sizes(e.w1, {-1, -1, -1}, "moe_ffn: w1");
  check_sizes(e.w2, {-1, -1, -1}, "moe_ffn: w2");
  const c10::SymInt D = x.sym_size(1), E = e.w2.sym_size(0);
  const c10::SymInt F = e.w2.sym_size(l.down_columns ? 1 : 2);
  const bool gated = e.up.has_value() || e.w1.sym_size(l.up_columns ? 2 : 1) != F;
  const auto check = [&](const at::Tensor& w, bool columns, const c10::SymInt& out,
                         const c10::SymInt& in, const char* name) {
    columns ? check_sizes(w, {E, in, out}, name) : check_sizes(w, {E, out, in}, name);
  };
  const c10::SymInt H = gated ? F * 2 : F;
  check(e.w2, l.down_columns, D, F, "moe_ffn: w2");
  check(e.w1, l.up_columns, e.up.has_value() ? F : H, D, "moe_ffn: w1");
  if (e.up.has_value()) check(*e.up, l.up_columns, F, D, "moe_ffn: up");
  TROUPE_CHECK(!l.interleaved || (gated && !e.up.has_value()),
               "moe_ffn: gate and up can take turns in w1 alone, where there is a gate");
  if (e.b1.has_value()) check_sizes(*e.b1, {E, H}, "moe_ffn: b1");
  if (e.b2.has_value()) check_sizes(*e.b2, {E, D}, "moe_ffn: b2");
  for (const auto& t : {std::optional(e.w1), e.b1, std::optional(e.w2), e.b2, e.up}) {
    if (!t.has_value()) continue;
    check_dtype(*t, x.scalar_type(), "moe_ffn: w1, b1, w2, b2, up");
    check_same_device(*t, x, "moe_ffn: w1, b1, w2, b2, up");
  }
  return {x.sym_size(0), D, E, F, H, gated};
}

void check_routing(const at::Tensor& x, const at::Tensor& weights, const Plan& p,
                   const c10::SymInt& E) {
  check_sizes(weights, {x.sym_size(0), -1}, "moe_ffn: weights");
  check_dtype(weights, wide_type(x), "moe_ffn: weights");
  check_same_device(weights, x, "moe_ffn: weights");
  check_plan(p, x, "moe_ffn");
  check_sizes(p.expert_offset, {E + 1}, "moe_ffn: the plan's expert_offset");
  check_sizes(p.slot_row, {x.sym_size(0), weights.sym_size(1)}, "moe_ffn: the plan's slot_row");
}

}  // namespace

FfnSizes check_ffn(const at::Tensor& x, const at::Tensor& weights, const Plan& plan,
                   const ExpertWeights& experts, const WeightLayout& layout) {
  const FfnSizes sizes = check_experts(x, experts, layout);
  check_routing(x, weights, plan, sizes.experts);
  return sizes;
}

}  // namespace troupe
