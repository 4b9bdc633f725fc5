#include "troupe/ops/moe_ffn/moe_ffn_fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>

#include <vector>

#include "troupe/ops/activation.h"
#include "troupe/ops/combine.h"
#include "troupe/ops/fp8.h"
#include "troupe/ops/grouped_gemm.h"
#include "troupe/ops/permute.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

constexpr int64_t kTile = 128;
const Fp8Tiles kRow{};
const Fp8Tiles kRowTile{.rows = 1, .columns = kTile};

at::Tensor rounded(const at::Tensor& x, const Fp8Tiles& tiles) {
  return dequantize_fp8(quantize_fp8(x, tiles), tiles, x.scalar_type());
}

// Weights [E, N, K], their blocks cut anew every `part_rows` of the N rows.
at::Tensor rounded_weight(const at::Tensor& w, int64_t part_rows) {
  const at::Tensor flat = w.reshape({w.size(0) * w.size(1), w.size(2)});
  return rounded(flat, {.rows = kTile, .columns = kTile, .part_rows = part_rows}).view(w.sizes());
}

// The rows of tokens in 8 bits, as products over routed rows take it.
struct EightBitRows {
  EightBitRows(const at::Tensor& x, const Plan& plan) : q(quantize_fp8(x, kRow)), plan_(plan) {
    type_ = x.scalar_type();
  }
  at::Tensor rows() const { return permute(dequantize_fp8(q, kRow, type_), plan_); }
  at::Tensor unscaled_rows() const { return permute(q.bytes.to(type_), plan_); }
  at::Tensor row_scales() const {  // [R]; of a row without a token: some token's
    return at::index_select(q.scales.view({-1}), 0, plan_.row_src.clamp_min(0));
  }

  Fp8Matrix q;

 private:
  const Plan& plan_;
  at::ScalarType type_;
};

struct Call {
  const Plan& plan;
  const ExpertWeights& experts;
  const FfnOptions& options;

  int64_t hidden() const { return experts.w2.size(2); }
  at::Tensor w1() const { return rounded_weight(experts.w1, hidden()); }
  at::Tensor w2() const { return rounded_weight(experts.w2, experts.w2.size(1)); }
  bool gated() const { return experts.w1.size(1) != hidden(); }
  at::Tensor scores(const at::Tensor& weights_TK) const {  // [R]
    const at::Tensor slot = plan.row_slot.clamp_min(0);
    return at::index_select(weights_TK.reshape({-1}), 0, slot).masked_fill(plan.row_slot.lt(0), 0);
  }
  at::Tensor activated(const at::Tensor& hidden, const at::Tensor& scores_R) const {
    return activation(hidden,
                      {.kind = options.activation,
                       .gated = gated(),
                       .clamp = options.clamp,
                       .offset = options.offset},
                      {.score_R = scores_R, .expert_offset = plan.expert_offset});
  }
  // Operand of a weight gradient: rows times the factor, in blocks of one expert's rows and of
  // gates or ups alone.
  at::Tensor blocks(const at::Tensor& rows, const at::Tensor& factor_R) const {
    const Fp8Tiles tiles{.rows = kTile, .columns = kTile, .expert_offset = plan.expert_offset};
    std::vector<at::Tensor> parts;
    for (const at::Tensor& part : rows.split(hidden(), 1)) {
      parts.push_back(
          dequantize_fp8(quantize_fp8(part, tiles, factor_R), tiles, rows.scalar_type()));
    }
    return parts.size() == 1 ? parts[0] : at::cat(parts, 1);
  }
};

// Returns dX, d weights, dW1, dW2; undefined where not needed.
TensorList gradients(const Call& call, const Fp8Ffn& fp8, const Gradients& g, const at::Tensor& x,
                     const at::Tensor& weights, const at::Tensor& hidden) {
  static const auto act_backward = raw_op<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
      const std::optional<at::Tensor>&, std::string, c10::ArrayRef<double>)>(
      "troupe::activation_backward");
  const at::Tensor dO = g.outputs[0].contiguous();
  const Plan& plan = call.plan;
  const at::Tensor s = call.scores(weights);
  const EightBitRows dO8(dO, plan);
  const at::Tensor grad_act =
      grouped_gemm(dO8.rows(), call.w2(), plan.expert_offset, WeightOrder::kInOut);
  const std::vector<double> limits = {call.options.clamp, call.options.offset};
  const auto [dH, dS] =
      act_backward(grad_act, hidden, s, plan.expert_offset, call.options.activation, limits);
  TensorList out(4);
  if (g.needs[0]) {
    const at::Tensor rows =
        grouped_gemm(rounded(dH, kRowTile), call.w1(), plan.expert_offset, WeightOrder::kInOut);
    out[0] = combine(rows, plan);
  }
  if (g.needs[1]) {
    const at::Tensor row = plan.slot_row.reshape({-1});
    out[1] = at::index_select(dS, 0, row.clamp_min(0)).masked_fill(row.lt(0), 0);
    out[1] = out[1].view(weights.sizes());
  }
  if (g.needs[2]) {
    const EightBitRows x8(x, plan);
    out[2] = fp8.weight_grad ? grouped_gemm_weight(call.blocks(dH, x8.row_scales()),
                                                   x8.unscaled_rows(), plan.expert_offset)
                             : grouped_gemm_weight(dH, permute(x, plan), plan.expert_offset);
  }
  if (g.needs[3]) {
    const at::Tensor act = call.activated(hidden, s);
    out[3] = fp8.weight_grad
                 ? grouped_gemm_weight(dO8.unscaled_rows(), call.blocks(act, dO8.row_scales()),
                                       plan.expert_offset)
                 : grouped_gemm_weight(permute(dO, plan), act, plan.expert_offset);
  }
  return out;
}

void check(const ExpertWeights& e, const FfnOptions& o) {
  TROUPE_CHECK(e.w1.dim() == 3 && e.w2.dim() == 3, "moe_ffn_fp8: w1 and w2 must be [E, N, K]");
  const int64_t D = e.w2.size(1), F = e.w2.size(2);
  TROUPE_CHECK(D >= kTile && F >= kTile, "moe_ffn_fp8: width", D, "and hidden width", F,
               "must be at least", kTile);
  TROUPE_CHECK(!e.b1.has_value() && !e.b2.has_value(), "moe_ffn_fp8: experts have no biases");
  TROUPE_CHECK(o.keep_hidden && o.input_bits < 0 && o.hidden_bits < 0,
               "moe_ffn_fp8: what experts keep for backward cannot be changed");
}

}  // namespace

at::Tensor moe_ffn_fp8(const at::Tensor& x_SD, const at::Tensor& weights_TK, const Plan& plan,
                       const ExpertWeights& experts, const FfnOptions& options, const Fp8Ffn& fp8) {
  check(experts, options);
  const at::Tensor x = rowwise(x_SD);
  const TensorList inputs = {x, weights_TK, experts.w1, experts.w2};
  at::Tensor out, hidden;
  {
    const at::NoGradGuard no_grad;
    const Call call{plan, experts, options};
    hidden = grouped_gemm(EightBitRows(x, plan).rows(), call.w1(), plan.expert_offset);
    const at::Tensor act = call.activated(hidden, call.scores(weights_TK));
    out = combine(grouped_gemm(rounded(act, kRowTile), call.w2(), plan.expert_offset), plan);
  }
  if (!wants_grad(inputs)) return out;
  TensorList saved = {x, weights_TK, experts.w1, experts.w2, hidden};
  for (const at::Tensor& t : plan_tensors(plan)) saved.push_back(t);
  record({.name = "moe_ffn_fp8",
          .inputs = inputs,
          .outputs = {out},
          .saved = saved,
          .backward = [options, fp8](const Gradients& g) {
            const at::NoGradGuard no_grad;
            const TensorList& s = g.saved;
            const Plan plan_again = plan_from(at::TensorList(s).slice(5), "moe_ffn_fp8");
            const ExpertWeights weights{
                .w1 = s[2], .b1 = std::nullopt, .w2 = s[3], .b2 = std::nullopt};
            const Call call{plan_again, weights, options};
            return gradients(call, fp8, g, s[0], s[1], s[4]);
          }});
  return out;
}

}  // namespace troupe
