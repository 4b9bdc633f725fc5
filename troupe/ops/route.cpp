#include "troupe/ops/route.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <array>
#include <string>
#include <vector>

#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

// The operators' arguments in groups: extras = [bias?, beta?, valid?, given_ids?],
// rule = [choices, score, weighting, groups, keep_groups, group_best, sequences, balance],
// factors = [norm, scale]. Results in the order of RouteResult.
using Extras = c10::List<std::optional<at::Tensor>>;
using Ints = c10::ArrayRef<int64_t>;
using Floats = c10::ArrayRef<double>;
constexpr size_t kNumResults = 9;

std::vector<int64_t> pack_rule(const RouteOptions& o) {
  const RouteRule& r = o.rule;
  return {r.choices,
          static_cast<int64_t>(r.score),
          static_cast<int64_t>(r.weighting),
          r.groups,
          r.keep_groups,
          r.group_best,
          o.sequences,
          o.balance ? 1 : 0};
}

RouteRule unpack_rule(Ints rule, Floats factors) {
  TROUPE_CHECK(rule.size() == 8 && factors.size() == 2, "route: rule must have 8 numbers and",
               "factors 2; they have", rule.size(), factors.size());
  return {.choices = rule[0],
          .score = static_cast<Score>(rule[1]),
          .weighting = static_cast<Weighting>(rule[2]),
          .norm = static_cast<float>(factors[0]),
          .scale = static_cast<float>(factors[1]),
          .groups = rule[3],
          .keep_groups = rule[4],
          .group_best = rule[5]};
}

at::Tensor extra(const Extras& extras, size_t i) {
  TROUPE_CHECK(extras.size() == 4, "route: extras must be [bias, beta, valid, given_ids]; it has",
               extras.size());
  const std::optional<at::Tensor> t = extras.get(i);
  return t.has_value() ? t->contiguous() : at::Tensor();
}

template <class T>
const T* optional_ptr(const at::Tensor& t, const char* name) {
  return t.defined() ? ptr<const T>(t, name) : nullptr;
}

std::vector<at::Tensor> route_meta(const at::Tensor& logits, const Extras& extras, Ints rule,
                                   Floats factors) {
  check_sizes(logits, {-1, -1}, "route: logits");
  const RouteRule r = unpack_rule(rule, factors);
  const int64_t T = logits.size(0), E = logits.size(1), B = rule[6];
  const auto check = [&](size_t i, std::initializer_list<int64_t> sizes, const char* name) {
    const at::Tensor t = extra(extras, i);
    if (t.defined()) check_sizes(t, sizes, name), check_same_device(t, logits, name);
  };
  check(0, {E}, "route: bias");
  check(1, {E}, "route: beta");
  check(2, {T}, "route: valid");
  check(3, {T, r.choices}, "route: given_ids");
  const auto floats = logits.options().dtype(wide_type(logits));
  const auto longs = logits.options().dtype(at::kLong);
  const int64_t kept = rule[7] != 0 ? B : 0;
  return {at::empty({T, r.choices}, logits.options().dtype(at::kInt)),
          at::empty({T, r.choices}, floats),
          at::empty({E}, longs),
          at::empty({T}, floats),
          at::empty({kept, E}, floats),
          at::empty({kept, E}, longs),
          at::empty({B}, longs),
          at::empty({}, floats),
          at::empty({}, floats)};
}

MutRef row_of(const at::Tensor& t, const char* name) {
  return mut_view(t.view({1, -1}), name);
}

std::vector<at::Tensor> route_device(const at::Tensor& logits_TE, const Extras& extras, Ints rule,
                                     Floats factors) {
  std::vector<at::Tensor> out = route_meta(logits_TE, extras, rule, factors);
  const at::Tensor logits = rowwise(logits_TE), bias = extra(extras, 0), beta = extra(extras, 1),
                   valid = extra(extras, 2), given = extra(extras, 3);
  Route args{.logits = view(logits, "route: logits"),
             .rule = unpack_rule(rule, factors),
             .bias = optional_ptr<float>(bias, "route: bias"),
             .beta = optional_ptr<float>(beta, "route: beta"),
             .valid = optional_ptr<uint8_t>(valid, "route: valid"),
             .given_ids = optional_ptr<int32_t>(given, "route: given_ids"),
             .sequences = rule[6],
             .ids = ptr<int32_t>(out[0], "ids"),
             .weights = mut_view(out[1], "weights"),
             .counts = ptr<int64_t>(out[2], "counts"),
             .lse = row_of(out[3], "lse"),
             .probs = {},
             .tokens = ptr<int64_t>(out[6], "tokens"),
             .lse_squares = row_of(out[7], "lse_squares"),
             .kept_scores = row_of(out[8], "kept_scores")};
  if (rule[7] != 0) {
    args.probs = mut_view(out[4], "probs");
    args.plain_counts = ptr<int64_t>(out[5], "plain_counts");
  }
  const at::Tensor workspace =
      at::empty({workspace_bytes(args)}, logits.options().dtype(at::kByte));
  args.workspace = workspace.mutable_data_ptr();
  run(logits.device(), args, route_cpu, &CudaKernels::route);
  return out;
}

at::Tensor route_backward_meta(const at::Tensor& logits, const at::Tensor& ids,
                               const Extras& extras, Ints rule, Floats factors) {
  check_sizes(logits, {-1, -1}, "route_backward: logits");
  check_sizes(ids, {logits.size(0), unpack_rule(rule, factors).choices}, "route_backward: ids");
  check_same_device(ids, logits, "route_backward: ids");
  for (size_t i = 0; i < extras.size(); ++i) {
    const at::Tensor t = extra(extras, i);
    if (t.defined()) check_same_device(t, logits, "route_backward: extras");
  }
  return at::empty(logits.sizes(), logits.options());
}

// extras = [grad_weights?, grad_probs?, grad_lse_squares?, valid?]
at::Tensor route_backward_device(const at::Tensor& logits_TE, const at::Tensor& ids,
                                 const Extras& extras, Ints rule, Floats factors) {
  const at::Tensor logits = rowwise(logits_TE);
  at::Tensor out = route_backward_meta(logits_TE, ids, extras, rule, factors);
  std::array<at::Tensor, 4> given;
  for (size_t i = 0; i < given.size(); ++i) given[i] = extra(extras, i);
  RouteBackward args{.logits = view(logits, "route: logits"),
                     .rule = unpack_rule(rule, factors),
                     .valid = optional_ptr<uint8_t>(given[3], "route: valid"),
                     .ids = ptr<const int32_t>(ids, "route: ids"),
                     .sequences = rule[6],
                     .grad_weights = {},
                     .grad_probs = {},
                     .grad_lse_squares = {},
                     .grad_logits = mut_view(out, "route: grad_logits")};
  if (given[0].defined()) args.grad_weights = view(given[0], "route: grad_weights");
  if (given[1].defined()) args.grad_probs = view(given[1], "route: grad_probs");
  if (given[2].defined()) {
    args.grad_lse_squares = view(given[2].view({1, 1}), "route: grad_lse_squares");
  }
  run(logits.device(), args, route_backward_cpu, &CudaKernels::route_backward);
  return out;
}

RouteResult as_result(const std::vector<at::Tensor>& t, bool balance) {
  return {t[0], t[1], t[2], t[3], balance ? t[4] : at::Tensor(), balance ? t[5] : at::Tensor(),
          t[6], t[7], t[8]};
}

Extras given(const TensorList& tensors) {
  Extras out;
  for (const at::Tensor& t : tensors) {
    out.push_back(t.defined() ? std::optional<at::Tensor>(t) : std::nullopt);
  }
  return out;
}

template <class E>
E by_name(const std::string& name, std::initializer_list<std::pair<const char*, E>> all,
          const char* what) {
  for (const auto& [text, value] : all) {
    if (name == text) return value;
  }
  TROUPE_CHECK(false, "route: no", what, name);
  return all.begin()->second;
}

// For Python: [ids, weights, counts, lse, probs, plain_counts, tokens, lse_squares, kept_scores].
std::vector<at::Tensor> route_op(const at::Tensor& logits, int64_t k, std::string score,
                                 std::string weighting, Floats factors, const Extras& extras) {
  TROUPE_CHECK(factors.size() == 2, "route: factors must be [norm, scale]");
  RouteOptions o;
  o.rule = {.choices = k,
            .score = by_name<Score>(score,
                                    {{"softmax", Score::kSoftmax},
                                     {"sigmoid", Score::kSigmoid},
                                     {"sqrtsoftplus", Score::kSqrtSoftplus}},
                                    "score"),
            .weighting = by_name<Weighting>(weighting,
                                            {{"chosen", Weighting::kChosen},
                                             {"raw", Weighting::kRaw},
                                             {"sum", Weighting::kSum},
                                             {"norm", Weighting::kNorm}},
                                            "weighting"),
            .norm = static_cast<float>(factors[0]),
            .scale = static_cast<float>(factors[1])};
  o.bias_E = extra(extras, 0);
  o.beta_E = extra(extras, 1);
  o.valid_T = extra(extras, 2);
  o.given_ids_TK = extra(extras, 3);
  const RouteResult r = route(logits, o);
  return {r.ids_TK,          r.weights_TK, r.counts_E,    r.lse_T,      r.probs_BE,
          r.plain_counts_BE, r.tokens_B,   r.lse_squares, r.kept_scores};
}

}  // namespace

RouteResult route(const at::Tensor& logits_TE, const RouteOptions& o) {
  static const auto op = raw_op<decltype(route_device)>("troupe::route_forward");
  const std::vector<int64_t> rule = pack_rule(o);
  const std::vector<double> factors = {o.rule.norm, o.rule.scale};
  const std::vector<at::Tensor> out =
      op(logits_TE, given({o.bias_E, o.beta_E, o.valid_T, o.given_ids_TK}), rule, factors);
  TROUPE_CHECK(out.size() == kNumResults, "route made", out.size(), "results");
  const RouteResult r = as_result(out, o.balance);
  TensorList differentiable = {r.weights_TK, r.lse_squares};
  if (o.balance) differentiable.push_back(r.probs_BE);
  record(
      {.name = "route",
       .inputs = {logits_TE},
       .outputs = differentiable,
       .saved = {logits_TE, r.ids_TK, o.valid_T},
       .backward = [rule, factors](const Gradients& g) -> TensorList {
         static const auto back = raw_op<decltype(route_backward_device)>("troupe::route_backward");
         const at::Tensor grad_probs = g.outputs.size() > 2 ? g.outputs[2] : at::Tensor();
         return {back(g.saved[0], g.saved[1],
                      given({g.outputs[0], grad_probs, g.outputs[1], g.saved[2]}), rule, factors)};
       }});
  return r;
}

void define_route(torch::Library& m) {
  define(m,
         "route_forward(Tensor logits, Tensor?[] extras, int[] rule, float[] factors) -> Tensor[]",
         route_device, route_meta);
  define(m,
         "route_backward(Tensor logits, Tensor ids, Tensor?[] extras, int[] rule, "
         "float[] factors) -> Tensor",
         route_backward_device, route_backward_meta);
  m.def(
      "route(Tensor logits, int k, str score, str weighting, float[] factors, "
      "Tensor?[] extras) -> Tensor[]",
      route_op);
}

}  // namespace troupe
