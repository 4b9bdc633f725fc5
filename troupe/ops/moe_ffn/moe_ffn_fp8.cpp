#include "troupe/ops/moe_ffn/moe_ffn_fp8.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/index_select.h>

#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "troupe/ops/activation.h"
#include "troupe/ops/combine.h"
#include "troupe/ops/grouped_gemm.h"
#include "troupe/ops/moe_ffn/fp8_emulated.h"
#include "troupe/ops/moe_ffn/fp8_largest.h"
#include "troupe/ops/moe_ffn/fp8_packed_sm90.h"
#include "troupe/ops/moe_ffn/moe_ffn_fp8_sm90.h"
#include "troupe/ops/permute.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/index_check.h"
#include "troupe/ops/support/record_late.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

const Fp8Tiles kRow{};
constexpr const char* kFp8Name = "moe_ffn_fp8";
constexpr const char* kTooEarly = "moe_ffn_fp8: gradients of weights before those of x, or twice";

// The rows of tokens in 8 bits, as products over routed rows take them. `largest`: of the tensor
// where all share a scale.
struct EightBitRows {
  EightBitRows(const at::Tensor& x, const Plan& plan,
               const std::optional<at::Tensor>& largest = std::nullopt)
      : q(quantize_fp8(x, kRow, std::nullopt, largest)), plan_(plan), type_(x.scalar_type()) {}
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

// A call whose products are passes of their own, on the kernels of x's type or, with `bytes`, on
// tensor cores in 8 bits. `counts`: a gradient follows, or this is backward.
struct Fp8Call {
  const Plan& plan;
  const ExpertWeights& experts;
  const FfnOptions& options;
  const Fp8Options& fp8;
  bool bytes, counts;

  int64_t hidden() const { return experts.w2.size(2); }
  bool gated() const { return experts.w1.size(1) != hidden(); }
  const at::Tensor& weight(Fp8Weights::Which which) const {
    return which == Fp8Weights::kIn ? experts.w1 : experts.w2;
  }
  at::Tensor emulated(Fp8Weights::Which which) const {
    const int64_t part_rows = which == Fp8Weights::kIn ? hidden() : experts.w2.size(1);
    return weight_emulated(fp8, which, weight(which), part_rows);
  }
  // tile(rows) times a weight.
  at::Tensor of_rows(const at::Tensor& rows, Fp8Weights::Which which, WeightOrder order) const {
    return product(rows, shared_largest(rows, use(operand(which, order))), which, order);
  }
  // The same of the rows of tokens.
  at::Tensor of_tokens(const at::Tensor& x, Fp8Weights::Which which, WeightOrder order) const {
    if (fp8.recipe != Fp8Recipe::kRow) {
      const auto largest = shared_tokens_largest(x, plan, use(operand(which, order)));
      return product(permute(x, plan), largest, which, order);
    }
    return grouped_gemm(EightBitRows(x, plan).rows(), emulated(which), plan.expert_offset, order);
  }
  // block(s rows)^T q(tokens), or with `tokens_first` its transpose; without weight_grad of
  // unrounded ones.
  at::Tensor weight_gradient(const at::Tensor& tokens, const at::Tensor& rows,
                             bool tokens_first) const {
    const auto product = [&](const at::Tensor& of_tokens, const at::Tensor& others) {
      return tokens_first ? grouped_gemm_weight(of_tokens, others, plan.expert_offset)
                          : grouped_gemm_weight(others, of_tokens, plan.expert_offset);
    };
    if (!fp8.weight_grad) return product(permute(tokens, plan), rows);
    const bool of_out = tokens_first;  // dO and A; else X and dH
    const Fp8PackedSm90::Largest largest{
        .tokens = shared_tokens_largest(tokens, plan,
                                        use(of_out ? Fp8Operand::kOutGrad : Fp8Operand::kIn)),
        .rows = shared_largest(rows, use(of_out ? Fp8Operand::kOut : Fp8Operand::kInGrad))};
    if (bytes) {
      return Fp8PackedSm90(rows, plan, fp8).weight_gradient(tokens, rows, largest, tokens_first);
    }
    const EightBitRows q(tokens, plan, largest.tokens);
    return product(q.unscaled_rows(), blocks(rows, q.row_scales(), largest.rows));
  }
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

 private:
  at::Tensor product(const at::Tensor& rows, const std::optional<at::Tensor>& largest,
                     Fp8Weights::Which which, WeightOrder order) const {
    if (bytes) {
      return Fp8PackedSm90(rows, plan, fp8).product(rows, largest, which, weight(which), order);
    }
    return grouped_gemm(tile_emulated(rows, largest), emulated(which), plan.expert_offset, order);
  }
  Fp8Use use(Fp8Operand operand) const { return {fp8, operand, counts}; }
  static Fp8Operand operand(Fp8Weights::Which which, WeightOrder order) {
    return order == WeightOrder::kOutIn ? input_of(which) : gradient_of(which);
  }
  // Operand of a weight gradient: rows times the factor, in blocks of one expert's rows and of
  // gates or ups alone.
  at::Tensor blocks(const at::Tensor& rows, const at::Tensor& factor_R,
                    const std::optional<at::Tensor>& largest) const {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& part : rows.split(hidden(), 1)) {
      parts.push_back(block_emulated(part, factor_R, plan.expert_offset, largest));
    }
    return parts.size() == 1 ? parts[0] : at::cat(parts, 1);
  }
};

// What backward of such a call reads, as it was saved.
struct PassesSaved {
  explicit PassesSaved(const TensorList& s)
      : x(s[0]),
        weights(s[1]),
        hidden(s[4]),
        experts{.w1 = s[2], .b1 = std::nullopt, .w2 = s[3], .b2 = std::nullopt},
        plan(plan_from(at::TensorList(s).slice(5), kFp8Name)) {}

  at::Tensor x, weights, hidden;
  ExpertWeights experts;
  Plan plan;
};

// dX and d weights; undefined where not needed, as dW1 and dW2 are.
struct RowsHalf {
  TensorList grads;
  at::Tensor grad_out, grad_hidden;  // which the others are made of
};
RowsHalf rows_half(const Fp8Call& call, const PassesSaved& saved, const Gradients& g) {
  static const auto act_backward = raw_op<std::tuple<at::Tensor, at::Tensor>(
      const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
      const std::optional<at::Tensor>&, std::string, std::optional<double>, double)>(
      "troupe::activation_backward");
  const Plan& plan = call.plan;
  RowsHalf out{.grads = TensorList(4), .grad_out = g.outputs[0].contiguous(), .grad_hidden = {}};
  const at::Tensor grad_act = call.of_tokens(out.grad_out, Fp8Weights::kOut, WeightOrder::kInOut);
  const auto [dH, dS] =
      act_backward(grad_act, saved.hidden, call.scores(saved.weights), plan.expert_offset,
                   call.options.activation, call.options.clamp, call.options.offset);
  out.grad_hidden = dH;
  if (g.needs[0]) {
    out.grads[0] = combine(call.of_rows(dH, Fp8Weights::kIn, WeightOrder::kInOut), plan);
  }
  if (g.needs[1]) {
    const at::Tensor row = plan.slot_row.reshape({-1});
    out.grads[1] = at::index_select(dS, 0, row.clamp_min(0))
                       .masked_fill(row.lt(0), 0)
                       .view_symint(saved.weights.sym_sizes());
  }
  return out;
}

// dW1 and dW2, behind two undefined tensors.
TensorList weights_half(const Fp8Call& call, const PassesSaved& saved, const RowsHalf& half,
                        const std::vector<bool>& needs) {
  TensorList out(4);
  if (needs[2]) out[2] = call.weight_gradient(saved.x, half.grad_hidden, /*tokens_first=*/false);
  if (needs[3]) {
    const at::Tensor act = call.activated(saved.hidden, call.scores(saved.weights));
    out[3] = call.weight_gradient(half.grad_out, act, /*tokens_first=*/true);
  }
  return out;
}

// The halves of such a backward, and what the first leaves for the second.
class PassesBackward {
 public:
  PassesBackward(FfnOptions options, Fp8Options fp8, bool bytes)
      : options_(std::move(options)), fp8_(std::move(fp8)), bytes_(bytes) {}

  TensorList rows(const Gradients& g) {
    const at::NoGradGuard no_grad;
    const PassesSaved saved(g.saved);
    RowsHalf half = rows_half(call(saved), saved, g);
    left_.reset();
    TensorList grads = std::move(half.grads);
    if (g.needs[2] || g.needs[3]) left_.emplace(Left{saved, std::move(half)});
    return grads;
  }

  TensorList weights(const Gradients& g) {
    const at::NoGradGuard no_grad;
    TROUPE_CHECK(left_.has_value(), kTooEarly);
    const Left left = std::move(*left_);
    left_.reset();
    return weights_half(call(left.saved), left.saved, left.half, g.needs);
  }

  TensorList all(const Gradients& g) {
    TensorList out = rows(g);
    if (!left_.has_value()) return out;
    TensorList rest = weights(g);
    for (const size_t i : {2, 3}) out[i] = std::move(rest[i]);
    return out;
  }

 private:
  struct Left {
    PassesSaved saved;
    RowsHalf half;
  };
  Fp8Call call(const PassesSaved& saved) const {
    return {saved.plan, saved.experts, options_, fp8_, bytes_, /*counts=*/true};
  }

  FfnOptions options_;
  Fp8Options fp8_;
  bool bytes_;
  std::optional<Left> left_;
};

// What backward of a call on tensor cores reads, as it was saved.
struct Sm90Saved {
  explicit Sm90Saved(const TensorList& s)
      : x(s[0]),
        weights(s[1]),
        kept{s[2], s[3], s[4], s[5], s[6], s[7], s[8]},
        plan(plan_from(at::TensorList(s).slice(9), kFp8Name)) {}

  // Reads this and `grad_out` while it lives.
  Fp8Backward call(const at::Tensor& grad_out, bool weight_grad,
                   const std::vector<bool>& needs) const {
    return {.grad_out = grad_out,
            .x = x,
            .weights = weights,
            .plan = plan,
            .kept = kept,
            .weight_grad = weight_grad,
            .needs = {needs[0], needs[1], needs[2], needs[3]}};
  }

  at::Tensor x, weights;
  Fp8Kept kept;
  Plan plan;
};

// As PassesBackward. A backward that is not cut makes weights' gradients first: it holds less.
class Sm90Backward {
 public:
  explicit Sm90Backward(bool weight_grad) : weight_grad_(weight_grad) {}

  TensorList rows(const Gradients& g) {
    const at::NoGradGuard no_grad;
    const Sm90Saved saved(g.saved);
    Fp8RowsHalf half = fp8_rows_backward_sm90(saved.call(g.outputs[0], weight_grad_, g.needs));
    left_.reset();
    TensorList grads(half.grads.begin(), half.grads.end());
    if (g.needs[2] || g.needs[3]) left_.emplace(Left{saved, g.outputs[0], std::move(half.left)});
    return grads;
  }

  TensorList weights(const Gradients& g) {
    const at::NoGradGuard no_grad;
    TROUPE_CHECK(left_.has_value(), kTooEarly);
    const Left left = std::move(*left_);
    left_.reset();
    const auto grads = fp8_weights_backward_sm90(
        left.saved.call(left.grad_out, weight_grad_, g.needs), left.between);
    return {grads.begin(), grads.end()};
  }

  TensorList all(const Gradients& g) const {
    const at::NoGradGuard no_grad;
    const Sm90Saved saved(g.saved);
    const auto grads = fp8_backward_sm90(saved.call(g.outputs[0], weight_grad_, g.needs));
    return {grads.begin(), grads.end()};
  }

 private:
  struct Left {
    Sm90Saved saved;
    at::Tensor grad_out;
    Fp8Between between;
  };

  bool weight_grad_;
  std::optional<Left> left_;
};

// Weights' gradients have the place that `options` gives them, or come with those of x.
template <class Backward>
void record_fp8(Record r, const FfnOptions& options, const std::shared_ptr<Backward>& backward) {
  r.backward = [backward](const Gradients& g) { return backward->rows(g); };
  const Halves halves{.name = "moe_ffn_fp8_weights",
                      .first_weight = 2,
                      .weights = [backward](const Gradients& g) { return backward->weights(g); },
                      .order = options.weights_order};
  if (record_halves(r, halves)) return;
  r.backward = [backward](const Gradients& g) { return backward->all(g); };
  record(std::move(r));
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

// Products that are passes of their own, and what backward needs of them.
at::Tensor in_passes(const FfnCall& ffn, const FfnOptions& options, const Fp8Options& fp8,
                     bool bytes) {
  const ExpertWeights& experts = ffn.experts;
  const TensorList inputs = {ffn.x, ffn.weights, experts.w1, experts.w2};
  const bool keep = wants_grad(inputs);
  at::Tensor out, hidden;
  {
    const at::NoGradGuard no_grad;
    const Fp8Call call{ffn.plan, experts, options, fp8, bytes, keep};
    hidden = call.of_tokens(ffn.x, Fp8Weights::kIn, WeightOrder::kOutIn);
    const at::Tensor act = call.activated(hidden, call.scores(ffn.weights));
    out = combine(call.of_rows(act, Fp8Weights::kOut, WeightOrder::kOutIn), ffn.plan);
  }
  if (!keep) return out;
  TensorList saved = inputs;
  saved.push_back(hidden);
  for (const at::Tensor& t : plan_tensors(ffn.plan)) saved.push_back(t);
  record_fp8({.name = kFp8Name, .inputs = inputs, .outputs = {out}, .saved = saved, .backward = {}},
             options, std::make_shared<PassesBackward>(options, fp8, bytes));
  return out;
}

// The joint products of recipe row, on a Hopper GPU.
at::Tensor in_joint_kernels(const FfnCall& call, const FfnOptions& options, const Fp8Options& fp8) {
  const TensorList inputs = {call.x, call.weights, call.experts.w1, call.experts.w2};
  const bool keep = wants_grad(inputs);
  const Fp8Forward f = [&] {
    const at::NoGradGuard no_grad;
    return fp8_forward_sm90(call, keep, fp8);
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
  record_fp8(
      {.name = kFp8Name, .inputs = inputs, .outputs = {f.out}, .saved = saved, .backward = {}},
      options, std::make_shared<Sm90Backward>(fp8.weight_grad));
  return f.out;
}

// LONG: a schema's arguments
at::Tensor moe_ffn_fp8_op(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& w1,
                          const at::Tensor& w2, at::TensorList plan, std::string activation,
                          std::optional<double> clamp, double offset, bool weight_grad,
                          bool emulate, const std::string& recipe) {
  const Plan routed = plan_from(plan, "moe_ffn_fp8");
  const ExpertWeights experts{.w1 = w1, .b1 = std::nullopt, .w2 = w2, .b2 = std::nullopt};
  check_ffn(x, weights, routed, experts);
  FfnOptions options{.activation = std::move(activation), .offset = offset};
  if (clamp.has_value()) options.clamp = *clamp;
  return moe_ffn_fp8(
      x, weights, routed, experts, options,
      {.weight_grad = weight_grad, .emulate = emulate, .recipe = fp8_recipe_of(recipe, kFp8Name)});
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
  const bool plain = kind.act == Act::kSilu && std::isinf(kind.clamp) && kind.offset == 0 && gated;
  // By the weights, whose sizes are numbers where x's are symbols.
  const Sm90Form form{experts.w2.size(1), call.hidden(),
                      call.num_experts(), plain,
                      x.scalar_type(),    capability_of(x.device())};
  const bool bytes = !fp8.emulate && fp8_sm90_fault(form).empty();
  if (bytes) check_whole_plan(plan, kFp8Name);  // the others' operators check what they read
  if (bytes && fp8.recipe == Fp8Recipe::kRow) return in_joint_kernels(call, options, fp8);
  return in_passes(call, options, fp8, bytes);
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  m.def(
      "moe_ffn_fp8(Tensor x, Tensor weights, Tensor w1, Tensor w2, Tensor[] plan, *, "
      "str activation=\"silu\", float? clamp=None, float offset=0., bool weight_grad=True, "
      "bool emulate=False, str recipe=\"row\") -> Tensor",
      moe_ffn_fp8_op);
}

}  // namespace troupe
