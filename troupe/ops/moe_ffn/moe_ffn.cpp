#include "troupe/ops/moe_ffn/moe_ffn.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "troupe/ops/moe_ffn/moe_ffn_paths.h"
#include "troupe/ops/quantize.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/plan_check.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

// The operators' arguments, in groups, so that schemas stay readable: experts = [w1, b1?, w2, b2?],
// plan = [expert_offset, row_src, row_slot, slot_row, counts], limits = [clamp, offset].
using Experts = c10::List<std::optional<at::Tensor>>;
using Limits = c10::ArrayRef<double>;
using Two = std::tuple<at::Tensor, at::Tensor>;

Experts pack(const ExpertWeights& e) {
  return Experts({e.w1, e.b1, e.w2, e.b2});
}

ExpertWeights unpack(const Experts& e) {
  TROUPE_CHECK(e.size() == 4, "moe_ffn: experts must be [w1, b1, w2, b2]; it has", e.size());
  const std::optional<at::Tensor> w1 = e.get(0), b1 = e.get(1), w2 = e.get(2), b2 = e.get(3);
  TROUPE_CHECK(w1.has_value() && w2.has_value(), "moe_ffn: w1 and w2 must be given");
  return {*w1, b1, *w2, b2};
}

void check_experts(const at::Tensor& x, const ExpertWeights& e) {
  check_sizes(x, {-1, -1}, "moe_ffn: x");
  check_sizes(e.w2, {-1, x.size(1), -1}, "moe_ffn: w2");
  const int64_t E = e.w2.size(0), D = x.size(1), F = e.w2.size(2);
  const bool gated = e.w1.dim() == 3 && e.w1.size(1) != F;
  check_sizes(e.w1, {E, gated ? 2 * F : F, D}, "moe_ffn: w1");
  if (e.b1.has_value()) check_sizes(*e.b1, {E, e.w1.size(1)}, "moe_ffn: b1");
  if (e.b2.has_value()) check_sizes(*e.b2, {E, D}, "moe_ffn: b2");
  for (const auto& t : {std::optional(e.w1), e.b1, std::optional(e.w2), e.b2}) {
    if (!t.has_value()) continue;
    check_dtype(*t, x.scalar_type(), "moe_ffn: w1, b1, w2, b2");
    check_same_device(*t, x, "moe_ffn: w1, b1, w2, b2");
  }
}

void check_routing(const at::Tensor& x, const at::Tensor& weights, const Plan& p, int64_t E) {
  check_sizes(weights, {x.size(0), -1}, "moe_ffn: weights");
  check_dtype(weights, wide_type(x), "moe_ffn: weights");
  check_same_device(weights, x, "moe_ffn: weights");
  check_plan(p, x, "moe_ffn");
  check_sizes(p.expert_offset, {E + 1}, "moe_ffn: the plan's expert_offset");
  check_sizes(p.slot_row, {x.size(0), weights.size(1)}, "moe_ffn: the plan's slot_row");
}

// One call with its arguments unpacked and checked.
struct Call {
  Call(const at::Tensor& x, const at::Tensor& weights, const Experts& e, at::TensorList p,
       const std::string& activation, Limits limits)
      : experts(unpack(e)), plan(plan_from(p, "moe_ffn")), ffn{x,       weights, plan,
                                                               experts, {},      false} {
    check_experts(x, experts);
    check_routing(x, weights, plan, experts.w2.size(0));
    TROUPE_CHECK(limits.size() == 2, "moe_ffn: limits must be [clamp, offset]; it has",
                 limits.size());
    ffn.kind = {.act = act_of_name(activation),
                .clamp = static_cast<float>(limits[0]),
                .offset = static_cast<float>(limits[1])};
    ffn.gated = experts.w1.size(1) != experts.w2.size(2);
  }
  Call(const Call&) = delete;

  ExpertWeights experts;
  Plan plan;
  FfnCall ffn;
};

FfnForward forward(const FfnCall& call, bool hidden_only) {
  return call.x.is_cuda() ? ffn_forward_cuda(call, hidden_only)
                          : ffn_forward_cpu(call, hidden_only);
}

Two moe_ffn_forward_device(const at::Tensor& x, const at::Tensor& weights, const Experts& experts,
                           at::TensorList plan, std::string activation, Limits limits) {
  const Call call(x, weights, experts, plan, activation, limits);
  FfnForward f = forward(call.ffn, /*hidden_only=*/false);
  return {f.out, f.hidden};
}

Two moe_ffn_forward_meta(const at::Tensor& x, const at::Tensor& weights, const Experts& experts,
                         at::TensorList plan, std::string activation, Limits limits) {
  const Call call(x, weights, experts, plan, activation, limits);
  return {at::empty(x.sizes(), x.options()),
          at::empty({call.ffn.rows(), call.ffn.hidden_columns()}, x.options())};
}

at::Tensor moe_ffn_hidden_device(const at::Tensor& x, const at::Tensor& weights,
                                 const Experts& experts, at::TensorList plan,
                                 std::string activation, Limits limits) {
  const Call call(x, weights, experts, plan, activation, limits);
  return forward(call.ffn, /*hidden_only=*/true).hidden;
}

at::Tensor moe_ffn_hidden_meta(const at::Tensor& x, const at::Tensor& weights,
                               const Experts& experts, at::TensorList plan, std::string activation,
                               Limits limits) {
  return std::get<1>(moe_ffn_forward_meta(x, weights, experts, plan, activation, limits));
}

// What backward's tensors, [grad_out, x, weights, hidden], must be beside those of the call.
void check_backward(const FfnCall& call, at::TensorList tensors, c10::ArrayRef<int64_t> needs) {
  TROUPE_CHECK(needs.size() == kNumFfnGradients, "moe_ffn_backward: needs must have",
               kNumFfnGradients, "numbers; it has", needs.size());
  const auto check = [&](const at::Tensor& t, int64_t rows, int64_t columns, const char* name) {
    check_sizes(t, {rows, columns}, name);
    check_dtype(t, call.x.scalar_type(), name);
    check_same_device(t, call.x, name);
  };
  check(tensors[0], call.tokens(), call.width(), "moe_ffn_backward: grad_out");
  check(tensors[3], call.rows(), call.hidden_columns(), "moe_ffn_backward: hidden");
}

const at::Tensor& backward_input(at::TensorList tensors, size_t i) {
  TROUPE_CHECK(tensors.size() == 4, "moe_ffn_backward: tensors must be [grad_out, x, weights,",
               "hidden]; it has", tensors.size());
  return tensors[i];
}

std::vector<at::Tensor> gradients(const Call& call, at::TensorList tensors,
                                  c10::ArrayRef<int64_t> needs, bool overwrite) {
  check_backward(call.ffn, tensors, needs);
  FfnNeeds wanted;
  for (int i = 0; i < kNumFfnGradients; ++i) wanted[i] = needs[i] != 0;
  const bool cuda = tensors[1].is_cuda();
  FfnGradTensors grads =
      cuda ? ffn_backward_cuda(call.ffn, tensors[0], tensors[3], wanted, overwrite)
           : ffn_backward_cpu(call.ffn, tensors[0], tensors[3], wanted, overwrite);
  const FfnGradTensors like = {tensors[1],      tensors[2],      call.experts.w1,
                               call.experts.w1, call.experts.w2, call.experts.w2};
  for (int i = 0; i < kNumFfnGradients; ++i) {
    grads[i] = grads[i].defined() ? grads[i].to(like[i].scalar_type())
                                  : at::empty({0}, tensors[1].options());
  }
  return {grads.begin(), grads.end()};
}

// tensors = [grad_out, x, weights, hidden]; needs and the result in the order of FfnGradTensors, an
// unwanted gradient being an empty tensor.
std::vector<at::Tensor> moe_ffn_backward_device(at::TensorList tensors, const Experts& experts,
                                                at::TensorList plan, std::string activation,
                                                Limits limits, c10::ArrayRef<int64_t> needs) {
  const Call call(backward_input(tensors, 1), tensors[2], experts, plan, activation, limits);
  return gradients(call, tensors, needs, /*overwrite=*/false);
}

TensorList with_hidden(at::TensorList tensors, const at::Tensor& hidden) {
  TensorList all = tensors.vec();
  all.push_back(hidden);
  return all;
}

// The same, but tensors = [grad_out, x, weights], and hidden may be overwritten.
// LONG: a schema's arguments
std::vector<at::Tensor> moe_ffn_backward_over_device(at::TensorList tensors,
                                                     const at::Tensor& hidden,
                                                     const Experts& experts, at::TensorList plan,
                                                     std::string activation, Limits limits,
                                                     c10::ArrayRef<int64_t> needs) {
  const TensorList all = with_hidden(tensors, hidden);
  const Call call(backward_input(all, 1), all[2], experts, plan, activation, limits);
  return gradients(call, all, needs, /*overwrite=*/true);
}

std::vector<at::Tensor> moe_ffn_backward_meta(at::TensorList tensors, const Experts& experts,
                                              at::TensorList plan, std::string activation,
                                              Limits limits, c10::ArrayRef<int64_t> needs) {
  const Call call(backward_input(tensors, 1), tensors[2], experts, plan, activation, limits);
  check_backward(call.ffn, tensors, needs);
  const ExpertWeights& e = call.experts;
  const at::Tensor none = at::empty({0}, tensors[1].options());
  const TensorList like = {tensors[1],          tensors[2], e.w1,
                           e.b1.value_or(none), e.w2,       e.b2.value_or(none)};
  std::vector<at::Tensor> out;
  for (int i = 0; i < kNumFfnGradients; ++i) {
    out.push_back(needs[i] != 0 ? at::empty_like(like[i], at::MemoryFormat::Contiguous)
                                : at::empty({0}, tensors[1].options()));
  }
  return out;
}

// LONG: a schema's arguments
std::vector<at::Tensor> moe_ffn_backward_over_meta(at::TensorList tensors, const at::Tensor& hidden,
                                                   const Experts& experts, at::TensorList plan,
                                                   std::string activation, Limits limits,
                                                   c10::ArrayRef<int64_t> needs) {
  return moe_ffn_backward_meta(with_hidden(tensors, hidden), experts, plan, activation, limits,
                               needs);
}

constexpr size_t kFixed = 10;  // weights, four of the experts, five of the plan

void keep(TensorList& kept, const at::Tensor& t, int64_t bits, const FfnOptions& o) {
  if (bits < 0) return kept.push_back(t);
  const at::Tensor saturated =
      o.saturated.defined() ? o.saturated : at::zeros({1}, t.options().dtype(at::kLong));
  const Quantized q = quantize(t, bits, saturated);
  kept.push_back(q.values);
  kept.push_back(q.scales);
}

at::Tensor restore(const TensorList& kept, size_t& at, int64_t bits, at::IntArrayRef sizes,
                   at::ScalarType type) {
  if (bits < 0) return kept[at++];
  at += 2;
  return dequantize({kept[at - 2], kept[at - 1]}, bits, sizes, type);
}

TensorList backward(const Gradients& g, const FfnOptions& o, at::IntArrayRef x_sizes,
                    at::ScalarType type) {
  static const auto run = raw_op<decltype(moe_ffn_backward_device)>("troupe::moe_ffn_backward");
  static const auto run_over =
      raw_op<decltype(moe_ffn_backward_over_device)>("troupe::moe_ffn_backward_");
  static const auto again = raw_op<decltype(moe_ffn_hidden_device)>("troupe::moe_ffn_hidden");
  const auto& s = g.saved;
  const Experts experts({s[1], given(s[2]), s[3], given(s[4])});
  const TensorList plan(s.begin() + 5, s.begin() + kFixed);
  size_t at = kFixed;
  const at::Tensor x = restore(s, at, o.input_bits, x_sizes, type);
  const std::vector<double> limits = {o.clamp, o.offset};
  const at::Tensor hidden =
      o.keep_hidden ? restore(s, at, o.hidden_bits, {plan[1].size(0), s[1].size(1)}, type)
                    : again(x, s[0], experts, plan, o.activation, limits);
  std::vector<int64_t> needs(g.needs.begin(), g.needs.end());
  // Only a graph that goes on reads H again.
  TensorList grads = g.last ? run_over(TensorList{g.outputs[0], x, s[0]}, hidden, experts, plan,
                                       o.activation, limits, needs)
                            : run(TensorList{g.outputs[0], x, s[0], hidden}, experts, plan,
                                  o.activation, limits, needs);
  for (int i = 0; i < kNumFfnGradients; ++i) {
    if (needs[i] == 0) grads[i] = at::Tensor();
  }
  return grads;
}

// LONG: a schema's arguments, one for each field of FfnOptions
at::Tensor moe_ffn_op(const at::Tensor& x, const at::Tensor& weights, const Experts& experts,
                      at::TensorList plan, std::string activation, Limits limits, bool keep_hidden,
                      int64_t input_bits, int64_t hidden_bits) {
  TROUPE_CHECK(limits.size() == 2, "moe_ffn: limits must be [clamp, offset]; it has",
               limits.size());
  return moe_ffn(x, weights, plan_from(plan, "moe_ffn"), unpack(experts),
                 {.activation = activation,
                  .clamp = limits[0],
                  .offset = limits[1],
                  .keep_hidden = keep_hidden,
                  .input_bits = input_bits,
                  .hidden_bits = hidden_bits});
}

}  // namespace

at::Tensor moe_ffn(const at::Tensor& x_TD, const at::Tensor& weights_TK, const Plan& plan,
                   const ExpertWeights& e, const FfnOptions& o) {
  static const auto op = raw_op<decltype(moe_ffn_forward_device)>("troupe::moe_ffn_forward");
  check_sizes(x_TD, {-1, -1}, "moe_ffn: x");
  const at::Tensor x = rowwise(x_TD);
  auto [out, hidden] = op(x, weights_TK, pack(e), plan_tensors(plan), o.activation,
                          std::vector<double>{o.clamp, o.offset});
  const at::Tensor b1 = e.b1.value_or(at::Tensor()), b2 = e.b2.value_or(at::Tensor());
  const TensorList inputs = {x, weights_TK, e.w1, b1, e.w2, b2};
  if (!wants_grad(inputs)) return out;
  TensorList saved = {weights_TK, e.w1, b1, e.w2, b2};
  for (const at::Tensor& t : plan_tensors(plan)) saved.push_back(t);
  keep(saved, x, o.input_bits, o);
  if (o.keep_hidden && o.hidden_bits >= 0) {
    // Rows that no slot has were never written; a group of 32 may lie across their border.
    hidden.masked_fill_(plan.row_slot.lt(0).unsqueeze(1), 0);
  }
  if (o.keep_hidden) keep(saved, hidden, o.hidden_bits, o);
  record({.name = "moe_ffn",
          .inputs = inputs,
          .outputs = {out},
          .saved = saved,
          .backward = [o, sizes = x.sizes().vec(), type = x.scalar_type()](const Gradients& g) {
            return backward(g, o, sizes, type);
          }});
  return out;
}

void define_moe_ffn(torch::Library& m) {
  define(m,
         "moe_ffn_forward(Tensor x, Tensor weights, Tensor?[] experts, Tensor[] plan, "
         "str activation, float[] limits) -> (Tensor, Tensor)",
         moe_ffn_forward_device, moe_ffn_forward_meta);
  define(m,
         "moe_ffn_hidden(Tensor x, Tensor weights, Tensor?[] experts, Tensor[] plan, "
         "str activation, float[] limits) -> Tensor",
         moe_ffn_hidden_device, moe_ffn_hidden_meta);
  define(m,
         "moe_ffn_backward(Tensor[] tensors, Tensor?[] experts, Tensor[] plan, str activation, "
         "float[] limits, int[] needs) -> Tensor[]",
         moe_ffn_backward_device, moe_ffn_backward_meta);
  define(m,
         "moe_ffn_backward_(Tensor[] tensors, Tensor(a!) hidden, Tensor?[] experts, Tensor[] plan, "
         "str activation, float[] limits, int[] needs) -> Tensor[]",
         moe_ffn_backward_over_device, moe_ffn_backward_over_meta);
  m.def(
      "moe_ffn(Tensor x, Tensor weights, Tensor?[] experts, Tensor[] plan, "
      "str activation, float[] limits, bool keep_hidden=True, "
      "int input_bits=-1, int hidden_bits=-1) -> Tensor",
      moe_ffn_op);
}

}  // namespace troupe
