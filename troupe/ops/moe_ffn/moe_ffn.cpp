#include "troupe/ops/moe_ffn/moe_ffn.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "troupe/ops/moe_ffn/moe_ffn_paths.h"
#include "troupe/ops/quantize.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/index_check.h"
#include "troupe/ops/support/plan_check.h"
#include "troupe/ops/support/record_late.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Optional = std::optional<at::Tensor>;
using Two = std::tuple<at::Tensor, at::Tensor>;

// The sizes of a call, symbolic while it is traced.
struct CallSizes {
  c10::SymInt tokens, width, experts, hidden, columns;  // columns: of H
  bool gated;
};

CallSizes check_experts(const at::Tensor& x, const ExpertWeights& e, const WeightLayout& l) {
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
  for (const auto& t : {Optional(e.w1), e.b1, Optional(e.w2), e.b2, e.up}) {
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

// An operator's arguments beside its tensors.
struct CallForm {
  std::string activation;
  std::optional<double> clamp;
  double offset;
  WeightLayout layout;

  ActivationKind kind() const {
    constexpr double kNone = std::numeric_limits<double>::infinity();
    return {.act = act_of_name(activation),
            .clamp = static_cast<float>(clamp.value_or(kNone)),
            .offset = static_cast<float>(offset)};
  }
};

// One call with its arguments checked.
struct CheckedCall {
  CheckedCall(const at::Tensor& x, const at::Tensor& weights, ExpertWeights e, at::TensorList p,
              const CallForm& form)
      : experts(std::move(e)),
        plan(plan_from(p, "moe_ffn")),
        sizes(check_experts(x, experts, form.layout)),
        ffn{x, weights, plan, experts, form.kind(), sizes.gated, form.layout} {
    check_routing(x, weights, plan, sizes.experts);
    TROUPE_CHECK(!x.is_cuda() || (form.layout.plain() && !experts.up.has_value()),
                 "moe_ffn: on CUDA weights must be [E, 2F, D] and [E, D, F], with gate and up as "
                 "halves of w1; troupe.moe_ffn reorders them");
  }
  CheckedCall(const CheckedCall&) = delete;

  ExpertWeights experts;
  Plan plan;
  CallSizes sizes;
  FfnCall ffn;
};

// LONG: a schema's arguments, as of all that follow
Two moe_ffn_forward_device(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& w1,
                           const Optional& b1, const at::Tensor& w2, const Optional& b2,
                           const Optional& up, at::TensorList plan, std::string activation,
                           std::optional<double> clamp, double offset, bool up_columns,
                           bool down_columns, bool interleaved, bool hidden_only) {
  const CheckedCall call(
      x, weights, {w1, b1, w2, b2, up}, plan,
      {std::move(activation), clamp, offset, {up_columns, down_columns, interleaved}});
  check_whole_plan(call.plan, "moe_ffn");
  FfnForward f = x.is_cuda() ? ffn_forward_cuda(call.ffn, hidden_only)
                             : ffn_forward_cpu(call.ffn, hidden_only);
  if (hidden_only) f.out = at::empty({0}, x.options());
  return {f.out, f.hidden};
}

// LONG: a schema's arguments
Two moe_ffn_forward_meta(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& w1,
                         const Optional& b1, const at::Tensor& w2, const Optional& b2,
                         const Optional& up, at::TensorList plan, std::string activation,
                         std::optional<double> clamp, double offset, bool up_columns,
                         bool down_columns, bool interleaved, bool hidden_only) {
  const CheckedCall call(
      x, weights, {w1, b1, w2, b2, up}, plan,
      {std::move(activation), clamp, offset, {up_columns, down_columns, interleaved}});
  return {hidden_only ? at::empty({0}, x.options()) : at::empty_symint(x.sym_sizes(), x.options()),
          at::empty_symint({call.plan.row_src.sym_size(0), call.sizes.columns}, x.options())};
}

void check_backward(const CheckedCall& call, const at::Tensor& grad_out, const at::Tensor& hidden) {
  const at::Tensor& x = call.ffn.x;
  const auto check = [&](const at::Tensor& t, const c10::SymInt& rows, const c10::SymInt& columns,
                         const char* name) {
    check_sizes(t, {rows, columns}, name);
    check_dtype(t, x.scalar_type(), name);
    check_same_device(t, x, name);
  };
  check(grad_out, call.sizes.tokens, call.sizes.width, "moe_ffn_backward: grad_out");
  check(hidden, call.plan.row_src.sym_size(0), call.sizes.columns, "moe_ffn_backward: hidden");
}

// In the order of FfnGradTensors; an unwanted one is an empty tensor.
std::vector<at::Tensor> gradients(const CheckedCall& call, const at::Tensor& grad_out,
                                  const at::Tensor& hidden, const FfnNeeds& needs, bool overwrite) {
  check_backward(call, grad_out, hidden);
  const at::Tensor &x = call.ffn.x, &weights = call.ffn.weights;
  FfnGradTensors grads = x.is_cuda()
                             ? ffn_backward_cuda(call.ffn, grad_out, hidden, needs, overwrite)
                             : ffn_backward_cpu(call.ffn, grad_out, hidden, needs, overwrite);
  const auto none = at::empty({0}, x.options());
  for (int i = 0; i < kNumFfnGradients; ++i) {
    const at::ScalarType type = i == 1 ? weights.scalar_type() : x.scalar_type();
    grads[i] = grads[i].defined() ? grads[i].to(type) : none;
  }
  return {grads.begin(), grads.end()};
}

// Hidden may be overwritten where kOverwrite.
// LONG: a schema's arguments
template <bool kOverwrite>
std::vector<at::Tensor> moe_ffn_backward_device(const at::Tensor& grad_out, const at::Tensor& x,
                                                const at::Tensor& weights, const at::Tensor& hidden,
                                                const at::Tensor& w1, const Optional& b1,
                                                const at::Tensor& w2, const Optional& b2,
                                                const Optional& up, at::TensorList plan,
                                                std::string activation, std::optional<double> clamp,
                                                double offset, bool up_columns, bool down_columns,
                                                bool interleaved, FfnNeeds needs) {
  const CheckedCall call(
      x, weights, {w1, b1, w2, b2, up}, plan,
      {std::move(activation), clamp, offset, {up_columns, down_columns, interleaved}});
  check_whole_plan(call.plan, "moe_ffn_backward");
  return gradients(call, grad_out, hidden, needs, kOverwrite);
}

// LONG: a schema's arguments
std::vector<at::Tensor> moe_ffn_backward_meta(const at::Tensor& grad_out, const at::Tensor& x,
                                              const at::Tensor& weights, const at::Tensor& hidden,
                                              const at::Tensor& w1, const Optional& b1,
                                              const at::Tensor& w2, const Optional& b2,
                                              const Optional& up, at::TensorList plan,
                                              std::string activation, std::optional<double> clamp,
                                              double offset, bool up_columns, bool down_columns,
                                              bool interleaved, FfnNeeds needs) {
  const CheckedCall call(
      x, weights, {w1, b1, w2, b2, up}, plan,
      {std::move(activation), clamp, offset, {up_columns, down_columns, interleaved}});
  check_backward(call, grad_out, hidden);
  const at::Tensor none = at::empty({0}, x.options());
  const TensorList like = {
      x, weights, w1, b1.value_or(none), w2, b2.value_or(none), up.value_or(none)};
  std::vector<at::Tensor> out;
  for (int i = 0; i < kNumFfnGradients; ++i) {
    out.push_back(needs[i] ? at::empty_like(like[i], at::MemoryFormat::Contiguous)
                           : at::empty({0}, x.options()));
  }
  return out;
}

// The places of what is kept: weights, w1, b1, w2, b2, up, five of the plan, then x and H as they
// are kept.
constexpr size_t kPlanAt = 6, kFixed = 11;

void keep(TensorList& kept, const at::Tensor& t, int64_t bits, const FfnOptions& o) {
  if (bits < 0) return kept.push_back(t);
  const at::Tensor saturated =
      o.saturated.defined() ? o.saturated : at::zeros({1}, t.options().dtype(at::kLong));
  const Quantized q = quantize(t, bits, saturated);
  kept.push_back(q.values);
  kept.push_back(q.scales);
}

at::Tensor restore(const TensorList& kept, size_t& at, int64_t bits, c10::SymIntArrayRef sizes,
                   at::ScalarType type) {
  if (bits < 0) return kept[at++];
  at += 2;
  return dequantize({kept[at - 2], kept[at - 1]}, bits, sizes, type);
}

// CallSizes of what may be kept in fewer bits.
struct KeptSizes {
  std::vector<c10::SymInt> x, hidden;
  at::ScalarType type;
};

std::optional<double> clamp_of(const FfnOptions& o) {
  return std::isinf(o.clamp) ? std::nullopt : std::optional(o.clamp);
}

// The arguments of a call, as the tensors saved for its backward hold them; x and H are read apart.
struct KeptCall {
  explicit KeptCall(const TensorList& s)
      : weights(s[0]),
        w1(s[1]),
        w2(s[3]),
        b1(given(s[2])),
        b2(given(s[4])),
        up(given(s[5])),
        plan(s.begin() + kPlanAt, s.begin() + kFixed) {}

  CheckedCall checked(const at::Tensor& x, const FfnOptions& o) const {
    return {
        x, weights, {w1, b1, w2, b2, up}, plan, {o.activation, clamp_of(o), o.offset, o.layout}};
  }

  at::Tensor weights, w1, w2;
  Optional b1, b2, up;
  TensorList plan;
};

struct KeptRows {
  at::Tensor x, hidden;
};

KeptRows kept_rows(const TensorList& saved, const KeptCall& c, const FfnOptions& o,
                   const KeptSizes& sizes) {
  static const auto again = raw_op<decltype(moe_ffn_forward_device)>("troupe::moe_ffn_forward");
  size_t at = kFixed;
  KeptRows out{.x = restore(saved, at, o.input_bits, sizes.x, sizes.type), .hidden = {}};
  const WeightLayout& l = o.layout;
  out.hidden = o.keep_hidden
                   ? restore(saved, at, o.hidden_bits, sizes.hidden, sizes.type)
                   : std::get<1>(again(out.x, c.weights, c.w1, c.b1, c.w2, c.b2, c.up, c.plan,
                                       o.activation, clamp_of(o), o.offset, l.up_columns,
                                       l.down_columns, l.interleaved, /*hidden_only=*/true));
  return out;
}

FfnNeeds needs_of(const Gradients& g) {
  FfnNeeds needs;
  for (int i = 0; i < kNumFfnGradients; ++i) needs[i] = g.needs[i];
  return needs;
}

TensorList backward(const Gradients& g, const FfnOptions& o, const KeptSizes& sizes) {
  using Backward = decltype(moe_ffn_backward_device<false>);
  static const auto run = raw_op<Backward>("troupe::moe_ffn_backward");
  static const auto run_over = raw_op<Backward>("troupe::moe_ffn_backward_");
  const KeptCall c(g.saved);
  const auto [x, hidden] = kept_rows(g.saved, c, o, sizes);
  const WeightLayout& l = o.layout;
  const FfnNeeds needs = needs_of(g);
  // Only a graph that goes on reads H again.
  TensorList grads = (g.last ? run_over : run)(
      g.outputs[0], x, c.weights, hidden, c.w1, c.b1, c.w2, c.b2, c.up, c.plan, o.activation,
      clamp_of(o), o.offset, l.up_columns, l.down_columns, l.interleaved, needs);
  for (int i = 0; i < kNumFfnGradients; ++i) {
    if (!needs[i]) grads[i] = at::Tensor();
  }
  return grads;
}

// The halves of a backward, and what the first leaves for the second.
class CutBackward {
 public:
  CutBackward(const FfnOptions& options, KeptSizes sizes)
      : options_(options), sizes_(std::move(sizes)) {}

  TensorList rows(const Gradients& g) {
    const KeptCall kept(g.saved);
    const auto [x, hidden] = kept_rows(g.saved, kept, options_, sizes_);
    const CheckedCall call = kept.checked(x, options_);
    check_backward(call, g.outputs[0], hidden);
    const FfnNeeds needs = needs_of(g);
    FfnRowsHalf half = x.is_cuda()
                           ? ffn_rows_backward_cuda(call.ffn, g.outputs[0], hidden, needs, g.last)
                           : ffn_rows_backward_cpu(call.ffn, g.outputs[0], hidden, needs, g.last);
    left_.reset();
    if (std::any_of(needs.begin() + 2, needs.end(), [](bool need) { return need; })) {
      left_.emplace(Left{kept, x, g.outputs[0], std::move(half.between)});
    }
    return typed(half.grads, x, kept.weights);
  }

  TensorList weights(const Gradients& g) {
    TROUPE_CHECK(left_.has_value(), "moe_ffn: gradients of weights before those of x, or twice");
    const Left left = std::move(*left_);
    left_.reset();
    const CheckedCall call = left.kept.checked(left.x, options_);
    const FfnNeeds needs = needs_of(g);
    return typed(left.x.is_cuda()
                     ? ffn_weights_backward_cuda(call.ffn, left.grad_out, left.between, needs)
                     : ffn_weights_backward_cpu(call.ffn, left.grad_out, left.between, needs),
                 left.x, left.kept.weights);
  }

 private:
  struct Left {
    KeptCall kept;
    at::Tensor x, grad_out;
    FfnBetween between;
  };

  static TensorList typed(const FfnGradTensors& grads, const at::Tensor& x,
                          const at::Tensor& weights) {
    TensorList out(grads.begin(), grads.end());
    for (size_t i = 0; i < out.size(); ++i) {
      if (out[i].defined()) out[i] = out[i].to(i == 1 ? weights.scalar_type() : x.scalar_type());
    }
    return out;
  }

  FfnOptions options_;
  KeptSizes sizes_;
  std::optional<Left> left_;
};

// LONG: a schema's arguments
at::Tensor moe_ffn_op(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& w1,
                      const at::Tensor& w2, at::TensorList plan, const Optional& b1,
                      const Optional& b2, const Optional& up, std::string activation,
                      std::optional<double> clamp, double offset, bool up_columns,
                      bool down_columns, bool interleaved, bool keep_hidden, int64_t input_bits,
                      int64_t hidden_bits) {
  FfnOptions o{.activation = std::move(activation),
               .offset = offset,
               .layout = {up_columns, down_columns, interleaved},
               .keep_hidden = keep_hidden,
               .input_bits = input_bits,
               .hidden_bits = hidden_bits};
  if (clamp.has_value()) o.clamp = *clamp;
  return moe_ffn(x, weights, plan_from(plan, "moe_ffn"), {w1, b1, w2, b2, up}, o);
}

}  // namespace

void check_ffn(const at::Tensor& x, const at::Tensor& weights, const Plan& plan,
               const ExpertWeights& experts) {
  check_routing(x, weights, plan, check_experts(x, experts, {}).experts);
}

at::Tensor moe_ffn(const at::Tensor& x_TD, const at::Tensor& weights_TK, const Plan& plan,
                   const ExpertWeights& e, const FfnOptions& o) {
  static const auto op = raw_op<decltype(moe_ffn_forward_device)>("troupe::moe_ffn_forward");
  check_sizes(x_TD, {-1, -1}, "moe_ffn: x");
  const at::Tensor x = rowwise(x_TD);
  const WeightLayout& l = o.layout;
  auto [out, hidden] =
      op(x, weights_TK, e.w1, e.b1, e.w2, e.b2, e.up, plan_tensors(plan), o.activation, clamp_of(o),
         o.offset, l.up_columns, l.down_columns, l.interleaved, /*hidden_only=*/false);
  const at::Tensor none, b1 = e.b1.value_or(none), b2 = e.b2.value_or(none);
  const at::Tensor up = e.up.value_or(none);
  const TensorList inputs = {x, weights_TK, e.w1, b1, e.w2, b2, up};
  if (!wants_grad(inputs)) return out;
  TensorList saved = {weights_TK, e.w1, b1, e.w2, b2, up};
  for (const at::Tensor& t : plan_tensors(plan)) saved.push_back(t);
  keep(saved, x, o.input_bits, o);
  if (o.keep_hidden && o.hidden_bits >= 0) {
    // Rows that no slot has were never written; a group of 32 may be across their border.
    hidden.masked_fill_(plan.row_slot.lt(0).unsqueeze(1), 0);
  }
  if (o.keep_hidden) keep(saved, hidden, o.hidden_bits, o);
  const KeptSizes sizes{x.sym_sizes().vec(), hidden.sym_sizes().vec(), x.scalar_type()};
  Record record{
      .name = "moe_ffn", .inputs = inputs, .outputs = {out}, .saved = saved, .backward = {}};
  const auto cut = std::make_shared<CutBackward>(o, sizes);
  record.backward = [cut](const Gradients& g) { return cut->rows(g); };
  const Halves halves{.name = "moe_ffn_weights",
                      .first_weight = 2,
                      .weights = [cut](const Gradients& g) { return cut->weights(g); },
                      .order = o.weights_order};
  if (record_halves(record, halves)) return out;
  // Where weights are made of parameters and their gradients late, the gradient of A is computed in
  // both halves, which is 1 of a gated expert's 9 products.
  record.backward = [o, sizes](const Gradients& g) { return backward(g, o, sizes); };
  record_late(std::move(record), /*first_weight=*/2);
  return out;
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  // Arguments that every operator here has; WeightLayout says how weights are laid out.
  const std::string experts =
      "Tensor w1, Tensor? b1, Tensor w2, Tensor? b2, Tensor? up, Tensor[] plan, str activation, "
      "float? clamp, float offset, bool up_columns, bool down_columns, bool interleaved, ";
  define(m,
         ("moe_ffn_forward(Tensor x, Tensor weights, " + experts +
          "bool hidden_only) -> (Tensor out, Tensor hidden)")
             .c_str(),
         moe_ffn_forward_device, moe_ffn_forward_meta);
  define(m,
         ("moe_ffn_backward(Tensor grad_out, Tensor x, Tensor weights, Tensor hidden, " + experts +
          "bool[7] needs) -> Tensor[]")
             .c_str(),
         moe_ffn_backward_device<false>, moe_ffn_backward_meta);
  define(m,
         ("moe_ffn_backward_(Tensor grad_out, Tensor x, Tensor weights, Tensor(a!) hidden, " +
          experts + "bool[7] needs) -> Tensor[]")
             .c_str(),
         moe_ffn_backward_device<true>, moe_ffn_backward_meta);
  m.def(
      "moe_ffn(Tensor x, Tensor weights, Tensor w1, Tensor w2, Tensor[] plan, *, "
      "Tensor? b1=None, Tensor? b2=None, Tensor? up=None, str activation=\"silu\", "
      "float? clamp=None, float offset=0., bool up_columns=False, bool down_columns=False, "
      "bool interleaved=False, bool keep_hidden=True, int input_bits=-1, int hidden_bits=-1) "
      "-> Tensor",
      moe_ffn_op);
}

}  // namespace troupe
