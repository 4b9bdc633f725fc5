#include "troupe/ops/moe_ffn/moe_ffn_fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>

#include <cmath>
#include <vector>

#include "troupe/ops/activation.h"
#include "troupe/ops/combine.h"
#include "troupe/ops/grouped_gemm.h"
#include "troupe/ops/moe_ffn/fp8_emulated.h"
#include "troupe/ops/moe_ffn/moe_ffn_fp8_sm90.h"
#include "troupe/ops/permute.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

const Fp8Tiles kRow{};

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

struct Fp8Call {
  const Plan& plan;
  const ExpertWeights& experts;
  const FfnOptions& options;
  Fp8Weights* kept;  // or null

  int64_t hidden() const { return experts.w2.size(2); }
  at::Tensor w1() const { return weight_emulated(kept, Fp8Weights::kIn, experts.w1, hidden()); }
  at::Tensor w2() const {
    return weight_emulated(kept, Fp8Weights::kOut, experts.w2, experts.w2.size(1));
  }
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
    std::vector<at::Tensor> parts;
    for (const at::Tensor& part : rows.split(hidden(), 1)) {
      parts.push_back(block_emulated(part, factor_R, plan.expert_offset));
    }
    return parts.size() == 1 ? parts[0] : at::cat(parts, 1);
  }
};

// Returns dX, d weights, dW1, dW2; undefined where not needed.
TensorList gradients(const Fp8Call& call, const Fp8Options& fp8, const Gradients& g,
                     const at::Tensor& x, const at::Tensor& weights, const at::Tensor& hidden) {
  static const auto act_backward = raw_op<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
      const std::optional<at::Tensor>&, std::string, std::optional<double>, double)>(
      "troupe::activation_backward");
  const at::Tensor dO = g.outputs[0].contiguous();
  const Plan& plan = call.plan;
  const at::Tensor s = call.scores(weights);
  const EightBitRows dO8(dO, plan);
  const at::Tensor grad_act =
      grouped_gemm(dO8.rows(), call.w2(), plan.expert_offset, WeightOrder::kInOut);
  const auto [dH, dS] =
      act_backward(grad_act, hidden, s, plan.expert_offset, call.options.activation,
                   call.options.clamp, call.options.offset);
  TensorList out(4);
  if (g.needs[0]) {
    const at::Tensor rows =
        grouped_gemm(tile_emulated(dH), call.w1(), plan.expert_offset, WeightOrder::kInOut);
    out[0] = combine(rows, plan);
  }
  if (g.needs[1]) {
    const at::Tensor row = plan.slot_row.reshape({-1});
    out[1] = at::index_select(dS, 0, row.clamp_min(0)).masked_fill(row.lt(0), 0);
    out[1] = out[1].view_symint(weights.sym_sizes());
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
  TROUPE_CHECK(D >= kFp8Tile && F >= kFp8Tile, "moe_ffn_fp8: width", D, "and hidden width", F,
               "must be at least", kFp8Tile);
  TROUPE_CHECK(!e.b1.has_value() && !e.b2.has_value(), "moe_ffn_fp8: experts have no biases");
  TROUPE_CHECK(!e.up.has_value() && o.layout.plain(),
               "moe_ffn_fp8: w1 must be [E, 2F, D], F gate rows, then F up rows, and w2 [E, D, F]");
  TROUPE_CHECK(o.keep_hidden && o.input_bits < 0 && o.hidden_bits < 0,
               "moe_ffn_fp8: what experts keep for backward cannot be changed");
}

// `x`: tokens or weights, which have one type and device. By the sizes of weights, which are
// numbers where those of tokens are symbols.
bool takes_tensor_cores(const at::Tensor& x, const ExpertWeights& e, const FfnOptions& o,
                        const Fp8Options& fp8) {
  const bool gated = e.w1.size(1) != e.w2.size(2);
  const bool plain = gated && act_of_name(o.activation) == Act::kSilu &&
                     std::isinf(static_cast<float>(o.clamp)) && static_cast<float>(o.offset) == 0;
  const Sm90Form form{e.w2.size(1), e.w2.size(2),    e.w2.size(0),
                      plain,        x.scalar_type(), capability_of(x.device())};
  return !fp8.emulate && fp8_sm90_fault(form).empty();
}

// The products in the type of x, and what backward needs of them.
at::Tensor emulated(const at::Tensor& x, const at::Tensor& weights, const Plan& plan,
                    const ExpertWeights& experts, const FfnOptions& options,
                    const Fp8Options& fp8) {
  const TensorList inputs = {x, weights, experts.w1, experts.w2};
  at::Tensor out, hidden;
  {
    const at::NoGradGuard no_grad;
    const Fp8Call call{plan, experts, options, fp8.kept.get()};
    hidden = grouped_gemm(EightBitRows(x, plan).rows(), call.w1(), plan.expert_offset);
    const at::Tensor act = call.activated(hidden, call.scores(weights));
    out = combine(grouped_gemm(tile_emulated(act), call.w2(), plan.expert_offset), plan);
  }
  if (!wants_grad(inputs)) return out;
  TensorList saved = {x, weights, experts.w1, experts.w2, hidden};
  for (const at::Tensor& t : plan_tensors(plan)) saved.push_back(t);
  record({.name = "moe_ffn_fp8",
          .inputs = inputs,
          .outputs = {out},
          .saved = saved,
          .backward = [options, fp8](const Gradients& g) {
            const at::NoGradGuard no_grad;
            const TensorList& s = g.saved;
            const Plan plan_again = plan_from(at::TensorList(s).slice(5), "moe_ffn_fp8");
            const ExpertWeights weights_again{
                .w1 = s[2], .b1 = std::nullopt, .w2 = s[3], .b2 = std::nullopt};
            const Fp8Call call{plan_again, weights_again, options, fp8.kept.get()};
            return gradients(call, fp8, g, s[0], s[1], s[4]);
          }});
  return out;
}

// The products of bytes, on a Hopper GPU.
at::Tensor on_tensor_cores(const FfnCall& call, const Fp8Options& fp8) {
  const TensorList inputs = {call.x, call.weights, call.experts.w1, call.experts.w2};
  const bool keep = wants_grad(inputs);
  const Fp8Forward f = [&] {
    const at::NoGradGuard no_grad;
    return fp8_forward_sm90(call, keep, fp8.kept.get());
  }();
  if (!keep) return f.out;
  const Fp8Kept& k = f.kept;
  TensorList saved = {fp8.weight_grad ? at::Tensor() : call.x,
                      call.weights,
                      fp8.weight_grad ? k.x : at::Tensor(),
                      fp8.weight_grad ? k.x_scales : at::Tensor(),
                      k.hidden,
                      k.w1t,
                      k.w1_scales,
                      k.w2t,
                      k.w2_scales};
  for (const at::Tensor& t : plan_tensors(call.plan)) saved.push_back(t);
  record({.name = "moe_ffn_fp8",
          .inputs = inputs,
          .outputs = {f.out},
          .saved = saved,
          .backward = [weight_grad = fp8.weight_grad](const Gradients& g) {
            const at::NoGradGuard no_grad;
            const TensorList& s = g.saved;
            const Plan plan = plan_from(at::TensorList(s).slice(9), "moe_ffn_fp8");
            const Fp8Kept kept{s[2], s[3], s[4], s[5], s[6], s[7], s[8]};
            const auto grads =
                fp8_backward_sm90({.grad_out = g.outputs[0],
                                   .x = s[0],
                                   .weights = s[1],
                                   .plan = plan,
                                   .kept = kept,
                                   .weight_grad = weight_grad,
                                   .needs = {g.needs[0], g.needs[1], g.needs[2], g.needs[3]}});
            return TensorList(grads.begin(), grads.end());
          }});
  return f.out;
}

// LONG: a schema's arguments
at::Tensor moe_ffn_fp8_op(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& w1,
                          const at::Tensor& w2, at::TensorList plan, std::string activation,
                          std::optional<double> clamp, double offset, bool weight_grad,
                          bool emulate) {
  const Plan routed = plan_from(plan, "moe_ffn_fp8");
  const ExpertWeights experts{.w1 = w1, .b1 = std::nullopt, .w2 = w2, .b2 = std::nullopt};
  check_ffn(x, weights, routed, experts);
  FfnOptions options{.activation = std::move(activation), .offset = offset};
  if (clamp.has_value()) options.clamp = *clamp;
  return moe_ffn_fp8(x, weights, routed, experts, options,
                     {.weight_grad = weight_grad, .emulate = emulate});
}

}  // namespace

at::Tensor moe_ffn_fp8(const at::Tensor& x_SD, const at::Tensor& weights_TK, const Plan& plan,
                       const ExpertWeights& experts, const FfnOptions& options,
                       const Fp8Options& fp8) {
  check(experts, options);
  const at::Tensor x = rowwise(x_SD);
  const bool gated = experts.w1.size(1) != experts.w2.size(2);
  const ActivationKind kind{.act = act_of_name(options.activation),
                            .clamp = static_cast<float>(options.clamp),
                            .offset = static_cast<float>(options.offset)};
  const FfnCall call{x, weights_TK, plan, experts, kind, gated, {}};
  if (takes_tensor_cores(x, experts, options, fp8)) return on_tensor_cores(call, fp8);
  return emulated(x, weights_TK, plan, experts, options, fp8);
}

std::shared_ptr<Fp8Weights> round_ahead(const ExpertWeights& experts, const FfnOptions& options,
                                        const Fp8Options& fp8, bool backward) {
  if (fp8.beside == nullptr || !takes_tensor_cores(experts.w1, experts, options, fp8))
    return nullptr;
  check(experts, options);
  const auto out = fp8.kept != nullptr ? fp8.kept : std::make_shared<Fp8Weights>();
  fp8_round_ahead_sm90(experts, backward || fp8.kept != nullptr, *fp8.beside, *out);
  return out;
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  m.def(
      "moe_ffn_fp8(Tensor x, Tensor weights, Tensor w1, Tensor w2, Tensor[] plan, *, "
      "str activation=\"silu\", float? clamp=None, float offset=0., bool weight_grad=True, "
      "bool emulate=False) -> Tensor",
      moe_ffn_fp8_op);
}

}  // namespace troupe
