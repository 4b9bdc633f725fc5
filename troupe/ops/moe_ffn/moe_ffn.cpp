#include "troupe/ops/moe_ffn/moe_ffn.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "troupe/ops/moe_ffn/ffn_check.h"
#include "troupe/ops/moe_ffn/ffn_halves.h"
#include "troupe/ops/quantize.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/index_check.h"
#include "troupe/ops/support/record_late.h"
#include "troupe/ops/support/saved.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Optional = std::optional<at::Tensor>;
using Two = std::tuple<at::Tensor, at::Tensor>;

// The arguments of the operators of experts beside their tensors.
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

  static auto visit(auto& a, auto&& f) {
    return f(arg("activation", a.activation), arg("clamp", a.clamp), arg("offset", a.offset),
             arg("up_columns", a.layout.up_columns), arg("down_columns", a.layout.down_columns),
             arg("interleaved", a.layout.interleaved));
  }
};

// What every operator here has.
struct ExpertArgs {
  const at::Tensor& w1;
  const Optional& b1;
  const at::Tensor& w2;
  const Optional& b2;
  const Optional& up;
  at::TensorList plan;
  CallForm form;

  ExpertWeights weights() const { return {w1, b1, w2, b2, up}; }

  static auto visit(auto& a, auto&& f) {
    return f(arg("w1", a.w1), arg("b1", a.b1), arg("w2", a.w2), arg("b2", a.b2), arg("up", a.up),
             arg("plan", a.plan), group(a.form));
  }
};

struct MoeFfnForwardArgs {
  const at::Tensor& x;
  const at::Tensor& weights;
  ExpertArgs experts;
  bool hidden_only;

  static constexpr const char *kName = "moe_ffn_forward", *kResults = "(Tensor out, Tensor hidden)";
  static auto visit(auto& a, auto&& f) {
    return f(arg("x", a.x), arg("weights", a.weights), group(a.experts),
             arg("hidden_only", a.hidden_only));
  }
};

// Hidden may be overwritten where kOverwrite.
template <bool kOverwrite>
struct MoeFfnBackwardArgs {
  const at::Tensor& grad_out;
  const at::Tensor& x;
  const at::Tensor& weights;
  const at::Tensor& hidden;
  ExpertArgs experts;
  FfnNeeds needs;

  static constexpr const char *kName = kOverwrite ? "moe_ffn_backward_" : "moe_ffn_backward",
                              *kResults = "Tensor[]";
  static auto visit(auto& a, auto&& f) {
    return f(arg("grad_out", a.grad_out), arg("x", a.x), arg("weights", a.weights),
             arg("hidden", a.hidden, Written{kOverwrite}), group(a.experts), arg("needs", a.needs));
  }
};

struct MoeFfnArgs {
  const at::Tensor& x;
  const at::Tensor& weights;
  const at::Tensor& w1;
  const at::Tensor& w2;
  at::TensorList plan;
  const Optional& b1;
  const Optional& b2;
  const Optional& up;
  CallForm form;
  bool keep_hidden;
  int64_t input_bits, hidden_bits;

  static constexpr const char *kName = "moe_ffn", *kResults = "Tensor";
  static auto visit(auto& a, auto&& f) {
    constexpr Default kNot{false};
    auto& [activation, clamp, offset, layout] = a.form;
    return f(arg("x", a.x), arg("weights", a.weights), arg("w1", a.w1), arg("w2", a.w2),
             arg("plan", a.plan), arg("b1", a.b1, kKeywordOnly, kDefaultNone),
             arg("b2", a.b2, kDefaultNone), arg("up", a.up, kDefaultNone),
             arg("activation", activation, Default{"silu"}), arg("clamp", clamp, kDefaultNone),
             arg("offset", offset, Default{0.}), arg("up_columns", layout.up_columns, kNot),
             arg("down_columns", layout.down_columns, kNot),
             arg("interleaved", layout.interleaved, kNot),
             arg("keep_hidden", a.keep_hidden, Default{true}),
             arg("input_bits", a.input_bits, Default{-1}),
             arg("hidden_bits", a.hidden_bits, Default{-1}));
  }
};

// One call with its arguments checked.
struct CheckedCall {
  CheckedCall(const at::Tensor& x, const at::Tensor& weights, const ExpertArgs& e)
      : CheckedCall(x, weights, e.weights(), plan_from(e.plan, "moe_ffn"), e.form) {}
  CheckedCall(const at::Tensor& x, const at::Tensor& weights, const ExpertWeights& e,
              const Plan& plan, const CallForm& form)
      : sizes(check_ffn(x, weights, plan, e, form.layout)), ffn{x,           weights,
                                                                plan,        e,
                                                                form.kind(), sizes.gated,
                                                                form.layout} {
    TROUPE_CHECK(!x.is_cuda() || (form.layout.plain() && !e.up.has_value()),
                 "moe_ffn: on CUDA weights must be [E, 2F, D] and [E, D, F], with gate and up as "
                 "halves of w1; troupe.moe_ffn reorders them");
  }

  FfnSizes sizes;
  FfnCall ffn;
};

std::unique_ptr<FfnBackend> path_of(const FfnCall& call) {
  return call.x.is_cuda() ? cuda_ffn(call) : cpu_ffn(call);
}

Two moe_ffn_forward_device(const MoeFfnForwardArgs& a) {
  const CheckedCall call(a.x, a.weights, a.experts);
  check_whole_plan(call.ffn.plan, "moe_ffn");
  FfnForward f = ffn_forward(*path_of(call.ffn), a.hidden_only);
  if (a.hidden_only) f.out = at::empty({0}, a.x.options());
  return {f.out, f.hidden};
}

Two moe_ffn_forward_meta(const MoeFfnForwardArgs& a) {
  const CheckedCall call(a.x, a.weights, a.experts);
  const auto options = a.x.options();
  return {a.hidden_only ? at::empty({0}, options) : at::empty_symint(a.x.sym_sizes(), options),
          at::empty_symint({call.ffn.plan.row_src.sym_size(0), call.sizes.columns}, options)};
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
  check(hidden, call.ffn.plan.row_src.sym_size(0), call.sizes.columns, "moe_ffn_backward: hidden");
}

// An unwanted one, and that of an input which is not there, is an empty tensor.
std::vector<at::Tensor> gradients(const CheckedCall& call, const at::Tensor& grad_out,
                                  const at::Tensor& hidden, FfnNeeds needs, bool overwrite) {
  check_backward(call, grad_out, hidden);
  const ExpertWeights& e = call.ffn.experts;
  needs[FfnInput::kB1] = needs[FfnInput::kB1] && e.b1.has_value();
  needs[FfnInput::kB2] = needs[FfnInput::kB2] && e.b2.has_value();
  needs[FfnInput::kUp] = needs[FfnInput::kUp] && e.up.has_value();
  const FfnGradTensors grads = ffn_backward(
      *path_of(call.ffn),
      {.grad_out = grad_out, .hidden = hidden, .needs = needs, .overwrite = overwrite});
  const at::Tensor none = at::empty({0}, call.ffn.x.options());
  TensorList out = in_types_of_inputs(grads, call.ffn.x.scalar_type());
  for (at::Tensor& grad : out) {
    if (!grad.defined()) grad = none;
  }
  return out;
}

template <bool kOverwrite>
std::vector<at::Tensor> moe_ffn_backward_device(const MoeFfnBackwardArgs<kOverwrite>& a) {
  const CheckedCall call(a.x, a.weights, a.experts);
  check_whole_plan(call.ffn.plan, "moe_ffn_backward");
  return gradients(call, a.grad_out, a.hidden, a.needs, kOverwrite);
}

template <bool kOverwrite>
std::vector<at::Tensor> moe_ffn_backward_meta(const MoeFfnBackwardArgs<kOverwrite>& a) {
  const ExpertArgs& e = a.experts;
  check_backward(CheckedCall(a.x, a.weights, e), a.grad_out, a.hidden);
  const at::Tensor none = at::empty({0}, a.x.options());
  const TensorList like = {
      a.x, a.weights, e.w1, e.b1.value_or(none), e.w2, e.b2.value_or(none), e.up.value_or(none)};
  std::vector<at::Tensor> out;
  for (size_t i = 0; i < a.needs.size(); ++i) {
    out.push_back(a.needs[i] ? at::empty_like(like[i], at::MemoryFormat::Contiguous)
                             : at::empty({0}, a.x.options()));
  }
  return out;
}

// A tensor as it is kept: itself, or in fewer bits with scales.
struct KeptRows {
  at::Tensor values, scales;
  static void visit(auto& s, auto&& f) { f(s.values), f(s.scales); }
};

KeptRows kept_rows(const at::Tensor& t, int64_t bits, const FfnOptions& o) {
  if (bits < 0) return {t, {}};
  const at::Tensor saturated =
      o.saturated.defined() ? o.saturated : at::zeros({1}, t.options().dtype(at::kLong));
  const Quantized q = quantize(t, bits, saturated);
  return {q.values, q.scales};
}

// What backward reads, by name.
struct FfnKept {
  at::Tensor weights, w1;
  Optional b1;
  at::Tensor w2;
  Optional b2, up;
  Plan plan;
  KeptRows x, hidden;
  static void visit(auto& s, auto&& f) {
    f(s.weights), f(s.w1), f(s.b1), f(s.w2), f(s.b2), f(s.up), f(s.plan), f(s.x), f(s.hidden);
  }
};

CallForm form_of(const FfnOptions& o) {
  return {o.activation, std::isinf(o.clamp) ? std::nullopt : std::optional(o.clamp), o.offset,
          o.layout};
}

// Of weights under these names, which live as long as the arguments.
ExpertArgs expert_args(const auto& e, at::TensorList plan, CallForm form) {
  return {e.w1, e.b1, e.w2, e.b2, e.up, plan, std::move(form)};
}

// Reads what was saved, with x and H as they were: kept, read back from fewer bits, or computed
// again.
class KeptReader {
 public:
  KeptReader(FfnOptions options, const at::Tensor& x, const at::Tensor& hidden)
      : options_(std::move(options)),
        x_sizes_(x.sym_sizes().vec()),
        hidden_sizes_(hidden.sym_sizes().vec()),
        type_(x.scalar_type()) {}

  const FfnOptions& options() const { return options_; }

  at::Tensor x(const FfnKept& s) const { return restored(s.x, options_.input_bits, x_sizes_); }

  at::Tensor hidden(const FfnKept& s, const at::Tensor& x) const {
    static const auto again = raw_op<decltype(moe_ffn_forward_device)>();
    const FfnOptions& o = options_;
    if (o.keep_hidden) return restored(s.hidden, o.hidden_bits, hidden_sizes_);
    const std::vector<at::Tensor> plan = plan_tensors(s.plan);
    return std::get<1>(
        again({x, s.weights, expert_args(s, plan, form_of(o)), /*hidden_only=*/true}));
  }

 private:
  at::Tensor restored(const KeptRows& kept, int64_t bits, c10::SymIntArrayRef sizes) const {
    return bits < 0 ? kept.values : dequantize({kept.values, kept.scales}, bits, sizes, type_);
  }

  FfnOptions options_;
  std::vector<c10::SymInt> x_sizes_, hidden_sizes_;
  at::ScalarType type_;
};

// The whole backward, through the dispatcher, so that tracing sees it.
TensorList backward(const Gradients& g, const KeptReader& kept) {
  static const auto run = raw_op<decltype(moe_ffn_backward_device<false>)>();
  static const auto run_over = raw_op<decltype(moe_ffn_backward_device<true>)>();
  const auto s = saved_from<FfnKept>(g.saved);
  const at::Tensor x = kept.x(s), hidden = kept.hidden(s, x);
  const std::vector<at::Tensor> plan = plan_tensors(s.plan);
  const FfnNeeds needs = ffn_needs(g);
  const auto call = [&](const auto& op) {
    return op(
        {g.outputs[0], x, s.weights, hidden, expert_args(s, plan, form_of(kept.options())), needs});
  };
  // Only a graph that goes on reads H again.
  TensorList grads = g.last ? call(run_over) : call(run);
  for (size_t i = 0; i < needs.size(); ++i) {
    if (!needs[i]) grads[i] = at::Tensor();
  }
  return grads;
}

FfnSaved operands(const TensorList& saved, const KeptReader& kept) {
  const auto s = saved_from<FfnKept>(saved);
  const at::Tensor x = kept.x(s), hidden = kept.hidden(s, x);
  const CheckedCall call(x, s.weights, {s.w1, s.b1, s.w2, s.b2, s.up}, s.plan,
                         form_of(kept.options()));
  return {hidden, [ffn = call.ffn] { return path_of(ffn); }};
}

at::Tensor moe_ffn_op(const MoeFfnArgs& a) {
  FfnOptions o{.activation = a.form.activation,
               .offset = a.form.offset,
               .layout = a.form.layout,
               .keep_hidden = a.keep_hidden,
               .input_bits = a.input_bits,
               .hidden_bits = a.hidden_bits};
  if (a.form.clamp.has_value()) o.clamp = *a.form.clamp;
  return moe_ffn(a.x, a.weights, plan_from(a.plan, "moe_ffn"), {a.w1, a.b1, a.w2, a.b2, a.up}, o);
}

}  // namespace

at::Tensor moe_ffn(const at::Tensor& x_TD, const at::Tensor& weights_TK, const Plan& plan,
                   const ExpertWeights& e, const FfnOptions& o) {
  static const auto op = raw_op<decltype(moe_ffn_forward_device)>();
  check_sizes(x_TD, {-1, -1}, "moe_ffn: x");
  const at::Tensor x = rowwise(x_TD);
  const std::vector<at::Tensor> parts = plan_tensors(plan);
  auto [out, hidden] =
      op({x, weights_TK, expert_args(e, parts, form_of(o)), /*hidden_only=*/false});
  const at::Tensor none, b1 = e.b1.value_or(none), b2 = e.b2.value_or(none);
  const at::Tensor up = e.up.value_or(none);
  const TensorList inputs = {x, weights_TK, e.w1, b1, e.w2, b2, up};
  if (!wants_grad(inputs)) return out;
  FfnKept saved{.weights = weights_TK,
                .w1 = e.w1,
                .b1 = e.b1,
                .w2 = e.w2,
                .b2 = e.b2,
                .up = e.up,
                .plan = plan,
                .x = kept_rows(x, o.input_bits, o),
                .hidden = {}};
  if (o.keep_hidden && o.hidden_bits >= 0) {
    // Rows that no slot has were never written; a group of 32 may be across their border.
    hidden.masked_fill_(plan.row_slot.lt(0).unsqueeze(1), 0);
  }
  if (o.keep_hidden) saved.hidden = kept_rows(hidden, o.hidden_bits, o);
  const KeptReader kept(o, x, hidden);
  Record record{.name = "moe_ffn",
                .inputs = inputs,
                .outputs = {out},
                .saved = saved_list(saved),
                .backward = {}};
  const auto halves =
      std::make_shared<FfnHalves>([kept](const TensorList& t) { return operands(t, kept); });
  if (record_ffn_halves(record, halves, "moe_ffn_weights", o.weights_order)) return out;
  // Where weights are made of parameters and their gradients late, the gradient of A is computed in
  // both halves, which is 1 of a gated expert's 9 products.
  record.backward = [kept](const Gradients& g) { return backward(g, kept); };
  record_late(std::move(record), FfnInput::kFirstWeight);
  return out;
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define<moe_ffn_forward_device, moe_ffn_forward_meta>(m);
  define<moe_ffn_backward_device<false>, moe_ffn_backward_meta<false>>(m);
  define<moe_ffn_backward_device<true>, moe_ffn_backward_meta<true>>(m);
  define_whole<moe_ffn_op>(m);
}

}  // namespace troupe
