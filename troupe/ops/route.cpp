#include "troupe/ops/route.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "troupe/ops/support/arg_check.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/index_check.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Optional = std::optional<at::Tensor>;
using Results = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor,
                           at::Tensor, at::Tensor, at::Tensor>;  // as RouteResult

constexpr auto kScores =
    std::array{std::pair{"softmax", Score::kSoftmax}, std::pair{"sigmoid", Score::kSigmoid},
               std::pair{"sqrtsoftplus", Score::kSqrtSoftplus}};
constexpr auto kWeightings =
    std::array{std::pair{"chosen", Weighting::kChosen}, std::pair{"raw", Weighting::kRaw},
               std::pair{"sum", Weighting::kSum}, std::pair{"norm", Weighting::kNorm}};

template <class E, size_t N>
E by_name(const std::string& name, const std::array<std::pair<const char*, E>, N>& all,
          const char* what) {
  for (const auto& [text, value] : all) {
    if (name == text) return value;
  }
  std::string known;
  for (const auto& [text, value] : all) known += std::string(known.empty() ? "" : ", ") + text;
  TROUPE_CHECK(false, "route:", what, "must be one of", known, "; it is", name);
  return all.front().second;
}

template <class E, size_t N>
const char* enum_name(E wanted, const std::array<std::pair<const char*, E>, N>& all) {
  for (const auto& [text, value] : all) {
    if (value == wanted) return text;
  }
  return "?";
}

// A rule as an operator's arguments give it.
struct Rule {
  int64_t choices;
  std::string score, weighting;
  double norm, scale;
  int64_t groups = 1, keep_groups = 1, group_best = 1;

  RouteRule rule() const {
    return {.choices = choices,
            .score = by_name(score, kScores, "score"),
            .weighting = by_name(weighting, kWeightings, "weighting"),
            .norm = static_cast<float>(norm),
            .scale = static_cast<float>(scale),
            .groups = groups,
            .keep_groups = keep_groups,
            .group_best = group_best};
  }
};

constexpr const char* kRouteResults =
    "(Tensor ids, Tensor weights, Tensor counts, Tensor lse, Tensor probs, Tensor plain_counts, "
    "Tensor tokens, Tensor lse_squares, Tensor kept_scores)";

struct RouteForwardArgs {
  const at::Tensor& logits;   // [T, E]
  const Optional& bias;       // [E]
  const Optional& beta;       // [E]
  const Optional& valid;      // [T]
  const Optional& given_ids;  // [T, K]
  Rule rule;
  c10::SymInt sequences;
  bool balance;

  static constexpr const char *kName = "route_forward", *kTitle = "route",
                              *kResults = kRouteResults;
  static auto visit(auto& a, auto&& f) {
    auto& r = a.rule;
    return f(arg("logits", a.logits, Dims{"TE"}), arg("bias", a.bias, Dims{"E"}),
             arg("beta", a.beta, Dims{"E"}), arg("valid", a.valid, Dims{"T"}),
             arg("given_ids", a.given_ids, Dims{"TK"}), arg("choices", r.choices),
             arg("score", r.score), arg("weighting", r.weighting), arg("norm", r.norm),
             arg("scale", r.scale), arg("groups", r.groups), arg("keep_groups", r.keep_groups),
             arg("group_best", r.group_best), arg("sequences", a.sequences),
             arg("balance", a.balance));
  }
};

// Of a rule what a gradient depends on.
struct WeightingRule {
  int64_t choices;
  std::string score, weighting;
  double norm, scale;

  RouteRule rule() const { return Rule{choices, score, weighting, norm, scale}.rule(); }

  static auto visit(auto& r, auto&& f) {
    return f(arg("choices", r.choices), arg("score", r.score), arg("weighting", r.weighting),
             arg("norm", r.norm), arg("scale", r.scale));
  }
};

struct RouteBackwardArgs {
  const at::Tensor& logits;  // [T, E]
  const at::Tensor& ids;     // [T, K]
  const Optional& grad_weights;
  const Optional& grad_probs;
  const Optional& grad_lse_squares;
  const Optional& valid;  // [T]
  WeightingRule rule;
  c10::SymInt sequences;

  static constexpr const char *kName = "route_backward", *kResults = "Tensor";
  static auto visit(auto& a, auto&& f) {
    return f(arg("logits", a.logits, Dims{"TE"}), arg("ids", a.ids, Dims{"TK"}),
             arg("grad_weights", a.grad_weights, Dims{"..."}),
             arg("grad_probs", a.grad_probs, Dims{"..."}),
             arg("grad_lse_squares", a.grad_lse_squares, Dims{"..."}),
             arg("valid", a.valid, Dims{"..."}), group(a.rule), arg("sequences", a.sequences));
  }
};

struct RouteArgs {
  const at::Tensor& logits;  // [T, E]
  int64_t k;
  std::string score, weighting;
  double norm, scale;
  const Optional& bias;
  const Optional& beta;
  const Optional& valid;
  const Optional& given_ids;
  int64_t groups, keep_groups, group_best;
  c10::SymInt sequences;
  bool balance;

  static constexpr const char *kName = "route", *kResults = kRouteResults;
  static auto visit(auto& a, auto&& f) {
    return f(arg("logits", a.logits), arg("k", a.k),
             arg("score", a.score, kKeywordOnly, Default{"softmax"}),
             arg("weighting", a.weighting, Default{"raw"}), arg("norm", a.norm, Default{1.}),
             arg("scale", a.scale, Default{1.}), arg("bias", a.bias, kDefaultNone),
             arg("beta", a.beta, kDefaultNone), arg("valid", a.valid, kDefaultNone),
             arg("given_ids", a.given_ids, kDefaultNone), arg("groups", a.groups, Default{1}),
             arg("keep_groups", a.keep_groups, Default{1}),
             arg("group_best", a.group_best, Default{1}), arg("sequences", a.sequences, Default{1}),
             arg("balance", a.balance, Default{true}));
  }
};

at::Tensor dense_or_none(const Optional& t) {
  return t.has_value() ? t->contiguous() : at::Tensor();
}

Optional maybe(const at::Tensor& t) {
  return t.defined() ? Optional(t) : std::nullopt;
}

template <class T>
const T* optional_ptr(const at::Tensor& t, const char* name) {
  return t.defined() ? ptr<const T>(t, name) : nullptr;
}

Results route_meta(const RouteForwardArgs& a) {
  a.rule.rule();
  const DimSizes sizes = check_args(a, {{'K', a.rule.choices}});
  const at::Tensor& logits = a.logits;
  const c10::SymInt &T = sizes['T'], &E = sizes['E'], &K = sizes['K'], &B = a.sequences;
  const auto floats = logits.options().dtype(wide_type(logits));
  const auto longs = logits.options().dtype(at::kLong);
  const c10::SymInt kept = a.balance ? B : c10::SymInt(0);
  return {at::empty_symint({T, K}, logits.options().dtype(at::kInt)),
          at::empty_symint({T, K}, floats),
          at::empty_symint({E}, longs),
          at::empty_symint({T}, floats),
          at::empty_symint({kept, E}, floats),
          at::empty_symint({kept, E}, longs),
          at::empty_symint({B}, longs),
          at::empty({}, floats),
          at::empty({}, floats)};
}

MutRef row_of(const at::Tensor& t, const char* name) {
  return mut_view(t.view({1, -1}), name);
}

Results route_device(const RouteForwardArgs& a) {
  const Results out = route_meta(a);
  const auto& [ids, weights, counts, lse, probs, plain_counts, tokens, squares, kept_scores] = out;
  const at::Tensor logits = rowwise(a.logits), bias = dense_or_none(a.bias),
                   beta = dense_or_none(a.beta), valid = dense_or_none(a.valid),
                   given = dense_or_none(a.given_ids);
  const at::Tensor given_ids = given.defined() ? int_ids(given, logits.size(1)) : given;
  Route args{.logits = view(logits, "route: logits"),
             .rule = a.rule.rule(),
             .bias = optional_ptr<float>(bias, "route: bias"),
             .beta = optional_ptr<float>(beta, "route: beta"),
             .valid = optional_ptr<uint8_t>(valid, "route: valid"),
             .given_ids = optional_ptr<int32_t>(given_ids, "route: given_ids"),
             .sequences = a.sequences.guard_int(__FILE__, __LINE__),
             .ids = ptr<int32_t>(ids, "ids"),
             .weights = mut_view(weights, "weights"),
             .counts = ptr<int64_t>(counts, "counts"),
             .lse = row_of(lse, "lse"),
             .probs = {},
             .tokens = ptr<int64_t>(tokens, "tokens"),
             .lse_squares = row_of(squares, "lse_squares"),
             .kept_scores = row_of(kept_scores, "kept_scores")};
  if (a.balance) {
    args.probs = mut_view(probs, "probs");
    args.plain_counts = ptr<int64_t>(plain_counts, "plain_counts");
  }
  const at::Tensor workspace =
      at::empty({workspace_bytes(args)}, logits.options().dtype(at::kByte));
  args.workspace = workspace.mutable_data_ptr();
  run(logits.device(), args, route_cpu, &CudaKernels::route);
  return out;
}

at::Tensor route_backward_meta(const RouteBackwardArgs& a) {
  a.rule.rule();
  check_args(a, {{'K', a.rule.choices}});
  return at::empty_symint(a.logits.sym_sizes(), a.logits.options());
}

at::Tensor route_backward_device(const RouteBackwardArgs& a) {
  at::Tensor out = route_backward_meta(a);
  check_indices({{"route_backward: ids", a.ids, -1, a.logits.size(1) - 1}});
  const at::Tensor logits = rowwise(a.logits), valid = dense_or_none(a.valid);
  const at::Tensor of_weights = dense_or_none(a.grad_weights),
                   of_probs = dense_or_none(a.grad_probs),
                   of_squares = dense_or_none(a.grad_lse_squares);
  RouteBackward args{.logits = view(logits, "route: logits"),
                     .rule = a.rule.rule(),
                     .valid = optional_ptr<uint8_t>(valid, "route: valid"),
                     .ids = ptr<const int32_t>(a.ids, "route: ids"),
                     .sequences = a.sequences.guard_int(__FILE__, __LINE__),
                     .grad_weights = {},
                     .grad_probs = {},
                     .grad_lse_squares = {},
                     .grad_logits = mut_view(out, "route: grad_logits")};
  if (of_weights.defined()) args.grad_weights = view(of_weights, "route: grad_weights");
  if (of_probs.defined()) args.grad_probs = view(of_probs, "route: grad_probs");
  if (of_squares.defined()) {
    args.grad_lse_squares = view(of_squares.view({1, 1}), "route: grad_lse_squares");
  }
  run(logits.device(), args, route_backward_cpu, &CudaKernels::route_backward);
  return out;
}

// Calls the operator and records its gradient.
Results route_with_grad(const at::Tensor& logits, const Rule& r, const RouteOptions& o,
                        const c10::SymInt& sequences) {
  static const auto op = raw_op<decltype(route_device)>();
  const Results out = op({logits, maybe(o.bias_E), maybe(o.beta_E), maybe(o.valid_T),
                          maybe(o.given_ids_TK), r, sequences, o.balance});
  TensorList differentiable = {std::get<1>(out), std::get<7>(out)};
  if (o.balance) differentiable.push_back(std::get<4>(out));
  record({.name = "route",
          .inputs = {logits},
          .outputs = differentiable,
          .saved = {logits, std::get<0>(out), o.valid_T},
          .backward = [rule = WeightingRule{r.choices, r.score, r.weighting, r.norm, r.scale},
                       sequences](const Gradients& g) -> TensorList {
            static const auto back = raw_op<decltype(route_backward_device)>();
            const at::Tensor grad_probs = g.outputs.size() > 2 ? g.outputs[2] : at::Tensor();
            return {back({g.saved[0], g.saved[1], maybe(g.outputs[0]), maybe(grad_probs),
                          maybe(g.outputs[1]), maybe(g.saved[2]), rule, sequences})};
          }});
  return out;
}

Results route_op(const RouteArgs& a) {
  const at::Tensor none;
  const Rule rule{a.k,     a.score,  a.weighting,   a.norm,
                  a.scale, a.groups, a.keep_groups, a.group_best};
  return route_with_grad(a.logits, rule,
                         {.rule = {},
                          .balance = a.balance,
                          .bias_E = a.bias.value_or(none),
                          .beta_E = a.beta.value_or(none),
                          .valid_T = a.valid.value_or(none),
                          .given_ids_TK = a.given_ids.value_or(none)},
                         a.sequences);
}

}  // namespace

RouteResult route(const at::Tensor& logits_TE, const RouteOptions& o) {
  const RouteRule& r = o.rule;
  const Rule rule{r.choices,
                  enum_name(r.score, kScores),
                  enum_name(r.weighting, kWeightings),
                  r.norm,
                  r.scale,
                  r.groups,
                  r.keep_groups,
                  r.group_best};
  const auto [ids, weights, counts, lse, probs, plain_counts, tokens, squares, kept_scores] =
      route_with_grad(logits_TE, rule, o, o.sequences);
  return {ids,
          weights,
          counts,
          lse,
          o.balance ? probs : at::Tensor(),
          o.balance ? plain_counts : at::Tensor(),
          tokens,
          squares,
          kept_scores};
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define<route_device, route_meta>(m);
  define<route_backward_device, route_backward_meta>(m);
  define_whole<route_op>(m);
}

}  // namespace troupe
