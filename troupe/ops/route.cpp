#include "troupe/ops/route.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

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

// LONG: a schema's arguments, as of all that follow
Results route_meta(const at::Tensor& logits, const Optional& bias, const Optional& beta,
                   const Optional& valid, const Optional& given_ids, int64_t choices,
                   std::string score, std::string weighting, double norm, double scale,
                   int64_t groups, int64_t keep_groups, int64_t group_best, c10::SymInt sequences,
                   bool balance) {
  check_sizes(logits, {-1, -1}, "route: logits");
  Rule{choices, score, weighting, norm, scale, groups, keep_groups, group_best}.rule();
  const c10::SymInt T = logits.sym_size(0), E = logits.sym_size(1), B = sequences;
  const auto check = [&](const Optional& t, std::initializer_list<c10::SymInt> sizes,
                         const char* name) {
    if (t.has_value()) check_sizes(*t, sizes, name), check_same_device(*t, logits, name);
  };
  check(bias, {E}, "route: bias");
  check(beta, {E}, "route: beta");
  check(valid, {T}, "route: valid");
  check(given_ids, {T, choices}, "route: given_ids");
  const auto floats = logits.options().dtype(wide_type(logits));
  const auto longs = logits.options().dtype(at::kLong);
  const c10::SymInt kept = balance ? B : c10::SymInt(0);
  return {at::empty_symint({T, choices}, logits.options().dtype(at::kInt)),
          at::empty_symint({T, choices}, floats),
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

// LONG: a schema's arguments
Results route_device(const at::Tensor& logits_TE, const Optional& bias_E, const Optional& beta_E,
                     const Optional& valid_T, const Optional& given_ids_TK, int64_t choices,
                     std::string score, std::string weighting, double norm, double scale,
                     int64_t groups, int64_t keep_groups, int64_t group_best, c10::SymInt sequences,
                     bool balance) {
  const Results out =
      route_meta(logits_TE, bias_E, beta_E, valid_T, given_ids_TK, choices, score, weighting, norm,
                 scale, groups, keep_groups, group_best, sequences, balance);
  const auto& [ids, weights, counts, lse, probs, plain_counts, tokens, squares, kept_scores] = out;
  const at::Tensor logits = rowwise(logits_TE), bias = dense_or_none(bias_E),
                   beta = dense_or_none(beta_E), valid = dense_or_none(valid_T),
                   given = dense_or_none(given_ids_TK);
  const at::Tensor given_ids = given.defined() ? int_ids(given, logits.size(1)) : given;
  Route args{
      .logits = view(logits, "route: logits"),
      .rule = Rule{choices, score, weighting, norm, scale, groups, keep_groups, group_best}.rule(),
      .bias = optional_ptr<float>(bias, "route: bias"),
      .beta = optional_ptr<float>(beta, "route: beta"),
      .valid = optional_ptr<uint8_t>(valid, "route: valid"),
      .given_ids = optional_ptr<int32_t>(given_ids, "route: given_ids"),
      .sequences = sequences.guard_int(__FILE__, __LINE__),
      .ids = ptr<int32_t>(ids, "ids"),
      .weights = mut_view(weights, "weights"),
      .counts = ptr<int64_t>(counts, "counts"),
      .lse = row_of(lse, "lse"),
      .probs = {},
      .tokens = ptr<int64_t>(tokens, "tokens"),
      .lse_squares = row_of(squares, "lse_squares"),
      .kept_scores = row_of(kept_scores, "kept_scores")};
  if (balance) {
    args.probs = mut_view(probs, "probs");
    args.plain_counts = ptr<int64_t>(plain_counts, "plain_counts");
  }
  const at::Tensor workspace =
      at::empty({workspace_bytes(args)}, logits.options().dtype(at::kByte));
  args.workspace = workspace.mutable_data_ptr();
  run(logits.device(), args, route_cpu, &CudaKernels::route);
  return out;
}

// LONG: a schema's arguments
at::Tensor route_backward_meta(const at::Tensor& logits, const at::Tensor& ids,
                               const Optional& grad_weights, const Optional& grad_probs,
                               const Optional& grad_lse_squares, const Optional& valid,
                               int64_t choices, std::string score, std::string weighting,
                               double norm, double scale, c10::SymInt /*sequences*/) {
  check_sizes(logits, {-1, -1}, "route_backward: logits");
  Rule{choices, score, weighting, norm, scale}.rule();
  check_sizes(ids, {logits.sym_size(0), choices}, "route_backward: ids");
  check_same_device(ids, logits, "route_backward: ids");
  for (const Optional& t : {grad_weights, grad_probs, grad_lse_squares, valid}) {
    if (t.has_value()) check_same_device(*t, logits, "route_backward: gradients and valid");
  }
  return at::empty_symint(logits.sym_sizes(), logits.options());
}

// LONG: a schema's arguments
at::Tensor route_backward_device(const at::Tensor& logits_TE, const at::Tensor& ids,
                                 const Optional& grad_weights, const Optional& grad_probs,
                                 const Optional& grad_lse_squares, const Optional& valid_T,
                                 int64_t choices, std::string score, std::string weighting,
                                 double norm, double scale, c10::SymInt sequences) {
  at::Tensor out = route_backward_meta(logits_TE, ids, grad_weights, grad_probs, grad_lse_squares,
                                       valid_T, choices, score, weighting, norm, scale, sequences);
  check_indices({{"route_backward: ids", ids, -1, logits_TE.size(1) - 1}});
  const at::Tensor logits = rowwise(logits_TE), valid = dense_or_none(valid_T);
  const at::Tensor of_weights = dense_or_none(grad_weights), of_probs = dense_or_none(grad_probs),
                   of_squares = dense_or_none(grad_lse_squares);
  RouteBackward args{.logits = view(logits, "route: logits"),
                     .rule = Rule{choices, score, weighting, norm, scale}.rule(),
                     .valid = optional_ptr<uint8_t>(valid, "route: valid"),
                     .ids = ptr<const int32_t>(ids, "route: ids"),
                     .sequences = sequences.guard_int(__FILE__, __LINE__),
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
  static const auto op = raw_op<decltype(route_device)>("troupe::route_forward");
  const Results out = op(logits, maybe(o.bias_E), maybe(o.beta_E), maybe(o.valid_T),
                         maybe(o.given_ids_TK), r.choices, r.score, r.weighting, r.norm, r.scale,
                         r.groups, r.keep_groups, r.group_best, sequences, o.balance);
  TensorList differentiable = {std::get<1>(out), std::get<7>(out)};
  if (o.balance) differentiable.push_back(std::get<4>(out));
  record({.name = "route",
          .inputs = {logits},
          .outputs = differentiable,
          .saved = {logits, std::get<0>(out), o.valid_T},
          .backward = [r, sequences](const Gradients& g) -> TensorList {
            static const auto back =
                raw_op<decltype(route_backward_device)>("troupe::route_backward");
            const at::Tensor grad_probs = g.outputs.size() > 2 ? g.outputs[2] : at::Tensor();
            return {back(g.saved[0], g.saved[1], maybe(g.outputs[0]), maybe(grad_probs),
                         maybe(g.outputs[1]), maybe(g.saved[2]), r.choices, r.score, r.weighting,
                         r.norm, r.scale, sequences)};
          }});
  return out;
}

// LONG: a schema's arguments
Results route_op(const at::Tensor& logits, int64_t k, std::string score, std::string weighting,
                 double norm, double scale, const Optional& bias, const Optional& beta,
                 const Optional& valid, const Optional& given_ids, int64_t groups,
                 int64_t keep_groups, int64_t group_best, c10::SymInt sequences, bool balance) {
  const at::Tensor none;
  const Rule rule{k, score, weighting, norm, scale, groups, keep_groups, group_best};
  return route_with_grad(logits, rule,
                         {.rule = {},
                          .balance = balance,
                          .bias_E = bias.value_or(none),
                          .beta_E = beta.value_or(none),
                          .valid_T = valid.value_or(none),
                          .given_ids_TK = given_ids.value_or(none)},
                         sequences);
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
  const std::string results =
      "(Tensor ids, Tensor weights, Tensor counts, Tensor lse, Tensor probs, Tensor plain_counts, "
      "Tensor tokens, Tensor lse_squares, Tensor kept_scores)";
  define(m,
         ("route_forward(Tensor logits, Tensor? bias, Tensor? beta, Tensor? valid, "
          "Tensor? given_ids, int choices, str score, str weighting, float norm, float scale, "
          "int groups, int keep_groups, int group_best, SymInt sequences, bool balance) -> " +
          results)
             .c_str(),
         route_device, route_meta);
  define(m,
         "route_backward(Tensor logits, Tensor ids, Tensor? grad_weights, Tensor? grad_probs, "
         "Tensor? grad_lse_squares, Tensor? valid, int choices, str score, str weighting, "
         "float norm, float scale, SymInt sequences) -> Tensor",
         route_backward_device, route_backward_meta);
  m.def(("route(Tensor logits, int k, *, str score=\"softmax\", str weighting=\"raw\", "
         "float norm=1., float scale=1., Tensor? bias=None, Tensor? beta=None, "
         "Tensor? valid=None, Tensor? given_ids=None, int groups=1, int keep_groups=1, "
         "int group_best=1, SymInt sequences=1, bool balance=True) -> " +
         results)
            .c_str(),
        route_op);
}

}  // namespace troupe
