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
  CheckedCall(const at::Tensor& x, const at::Tensor& weights, const ExpertWeights& e,
              at::TensorList p, const CallForm& form)
      : CheckedCall(x, weights, e, plan_from(p, "moe_ffn"), form) {}
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

// LONG: a schema's arguments, as of all that follow
Two moe_ffn_forward_device(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& w1,
                           const Optional& b1, const at::Tensor& w2, const Optional& b2,
                           const Optional& up, at::TensorList plan, std::string activation,
                           std::optional<double> clamp, double offset, bool up_columns,
                           bool down_columns, bool interleaved, bool hidden_only) {
  const CheckedCall call(
      x, weights, {w1, b1, w2, b2, up}, plan,
      {std::move(activation), clamp, offset, {up_columns, down_columns, interleaved}});
  check_whole_plan(call.ffn.plan, "moe_ffn");
  FfnForward f = ffn_forward(*path_of(call.ffn), hidden_only);
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
          at::empty_symint({call.ffn.plan.row_src.sym_size(0), call.sizes.columns}, x.options())};
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
  FfnGradTensors grads = ffn_backward(
      *path_of(call.ffn),
      {.grad_out = grad_out, .hidden = hidden, .needs = needs, .overwrite = overwrite});
  const at::Tensor &x = call.ffn.x, &weights = call.ffn.weights;
  const at::Tensor none = at::empty({0}, x.options());
  for (size_t i = 0; i < grads.size(); ++i) {
    const at::ScalarType type = i == FfnInput::kScores ? weights.scalar_type() : x.scalar_type();
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
  check_whole_plan(call.ffn.plan, "moe_ffn_backward");
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
  for (size_t i = 0; i < needs.size(); ++i) {
    out.push_back(needs[i] ? at::empty_like(like[i], at::MemoryFormat::Contiguous)
                           : at::empty({0}, x.options()));
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

std::optional<double> clamp_of(const FfnOptions& o) {
  return std::isinf(o.clamp) ? std::nullopt : std::optional(o.clamp);
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
    static const auto again = raw_op<decltype(moe_ffn_forward_device)>("troupe::moe_ffn_forward");
    const FfnOptions& o = options_;
    if (o.keep_hidden) return restored(s.hidden, o.hidden_bits, hidden_sizes_);
    const WeightLayout& l = o.layout;
    return std::get<1>(again(x, s.weights, s.w1, s.b1, s.w2, s.b2, s.up, plan_tensors(s.plan),
                             o.activation, clamp_of(o), o.offset, l.up_columns, l.down_columns,
                             l.interleaved, /*hidden_only=*/true));
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
  using Backward = decltype(moe_ffn_backward_device<false>);
  static const auto run = raw_op<Backward>("troupe::moe_ffn_backward");
  static const auto run_over = raw_op<Backward>("troupe::moe_ffn_backward_");
  const auto s = saved_from<FfnKept>(g.saved);
  const at::Tensor x = kept.x(s), hidden = kept.hidden(s, x);
  const FfnOptions& o = kept.options();
  const WeightLayout& l = o.layout;
  const FfnNeeds needs = ffn_needs(g);
  // Only a graph that goes on reads H again.
  TensorList grads = (g.last ? run_over : run)(
      g.outputs[0], x, s.weights, hidden, s.w1, s.b1, s.w2, s.b2, s.up, plan_tensors(s.plan),
      o.activation, clamp_of(o), o.offset, l.up_columns, l.down_columns, l.interleaved, needs);
  for (size_t i = 0; i < needs.size(); ++i) {
    if (!needs[i]) grads[i] = at::Tensor();
  }
  return grads;
}

FfnSaved operands(const TensorList& saved, const KeptReader& kept) {
  const auto s = saved_from<FfnKept>(saved);
  const FfnOptions& o = kept.options();
  const at::Tensor x = kept.x(s), hidden = kept.hidden(s, x);
  const CheckedCall call(x, s.weights, {s.w1, s.b1, s.w2, s.b2, s.up}, s.plan,
                         {o.activation, clamp_of(o), o.offset, o.layout});
  return {hidden, [ffn = call.ffn] { return path_of(ffn); }};
}

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
