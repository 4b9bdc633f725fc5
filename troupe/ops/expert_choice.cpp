#include "troupe/ops/expert_choice.h"

#include <ATen/ops/empty.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using ChoiceTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Optional = std::optional<at::Tensor>;

const char* name_of(Score score) {
  switch (score) {
    case Score::kSoftmax: return "softmax";
    case Score::kSigmoid: return "sigmoid";
    case Score::kSqrtSoftplus: return "sqrtsoftplus";
  }
  return "?";
}

ExpertChoiceRule rule_of(const std::string& score, double rho, bool normalize, double scale) {
  for (const Score s : {Score::kSoftmax, Score::kSigmoid, Score::kSqrtSoftplus}) {
    if (score == name_of(s)) return {s, rho, normalize, static_cast<float>(scale)};
  }
  TROUPE_CHECK(false, "expert_choice: score must be softmax, sigmoid or sqrtsoftplus; it is",
               score);
  return {};
}

Optional optional(const at::Tensor& t) {
  return t.defined() ? Optional(t.contiguous()) : std::nullopt;
}
Optional dense(const Optional& t) {
  return t.has_value() ? optional(*t) : std::nullopt;
}

// LONG: a schema's arguments
ChoiceTensors choose_meta(const at::Tensor& logits_TE, const Optional& valid_T,
                          const Optional& given_TE, std::string score, double rho, bool normalize,
                          double scale) {
  rule_of(score, rho, normalize, scale);
  check_sizes(logits_TE, {-1, -1}, "expert_choice: logits");
  const c10::SymInt T = logits_TE.sym_size(0), E = logits_TE.sym_size(1);
  if (valid_T.has_value()) {
    check_sizes(*valid_T, {T}, "expert_choice: valid");
    check_same_device(*valid_T, logits_TE, "expert_choice: valid");
  }
  if (given_TE.has_value()) {
    check_sizes(*given_TE, {T, E}, "expert_choice: given_ids");
    check_same_device(*given_TE, logits_TE, "expert_choice: given_ids");
  }
  const auto ints = logits_TE.options().dtype(at::kInt).requires_grad(false);
  const bool wide = logits_TE.scalar_type() == at::kDouble;
  const auto floats = ints.dtype(wide ? at::kDouble : at::kFloat);
  return {at::empty_symint({T, E}, ints), at::empty_symint({T, E}, floats),
          at::empty_symint({E}, ints.dtype(at::kLong)), at::empty_symint({1, 1}, floats)};
}

// LONG: a schema's arguments
ChoiceTensors choose_device(const at::Tensor& logits_TE, const Optional& valid_T,
                            const Optional& given_TE, std::string score, double rho, bool normalize,
                            double scale) {
  ChoiceTensors out = choose_meta(logits_TE, valid_T, given_TE, score, rho, normalize, scale);
  const at::Tensor logits = rowwise(logits_TE);
  const Optional valid = dense(valid_T), given = dense(given_TE);
  ExpertChoice args{.logits = view(logits, "expert_choice: logits"),
                    .rule = rule_of(score, rho, normalize, scale),
                    .valid = ptr_or_null<const uint8_t>(valid, "expert_choice: valid"),
                    .given_ids = ptr_or_null<const int32_t>(given, "expert_choice: given_ids"),
                    .ids = ptr<int32_t>(std::get<0>(out), "expert_choice: ids"),
                    .weights = mut_view(std::get<1>(out), "expert_choice: weights"),
                    .counts = ptr<int64_t>(std::get<2>(out), "expert_choice: counts"),
                    .lse_squares = mut_view(std::get<3>(out), "expert_choice: lse_squares")};
  const at::Tensor workspace =
      at::empty({workspace_bytes(args)}, std::get<0>(out).options().dtype(at::kByte));
  args.workspace = workspace.mutable_data_ptr();
  run(logits.device(), args, expert_choice_cpu, &CudaKernels::expert_choice);
  return out;
}

// LONG: a schema's arguments
at::Tensor backward_meta(const at::Tensor& grad_weights, const at::Tensor& grad_squares,
                         const at::Tensor& logits, const at::Tensor& ids, const Optional& /*valid*/,
                         std::string score, double rho, bool normalize, double scale) {
  rule_of(score, rho, normalize, scale);
  check_sizes(logits, {-1, -1}, "expert_choice_backward: logits");
  const c10::SymInt T = logits.sym_size(0), E = logits.sym_size(1);
  check_sizes(grad_weights, {T, E}, "expert_choice_backward: grad_weights");
  check_sizes(grad_squares, {1, 1}, "expert_choice_backward: grad_lse_squares");
  check_sizes(ids, {T, E}, "expert_choice_backward: ids");
  check_same_device(grad_weights, logits, "expert_choice_backward: grad_weights");
  check_same_device(grad_squares, logits, "expert_choice_backward: grad_lse_squares");
  check_same_device(ids, logits, "expert_choice_backward: ids");
  return at::empty_symint(logits.sym_sizes(), logits.options());
}

// LONG: a schema's arguments
at::Tensor backward_device(const at::Tensor& grad_weights_TE, const at::Tensor& grad_squares,
                           const at::Tensor& logits_TE, const at::Tensor& ids_TE,
                           const Optional& valid_T, std::string score, double rho, bool normalize,
                           double scale) {
  at::Tensor out = backward_meta(grad_weights_TE, grad_squares, logits_TE, ids_TE, valid_T, score,
                                 rho, normalize, scale);
  const at::Tensor logits = rowwise(logits_TE), grad = grad_weights_TE.contiguous();
  const at::Tensor squares = grad_squares.contiguous();
  const Optional valid = dense(valid_T);
  const ExpertChoiceBackward args{
      .logits = view(logits, "expert_choice: logits"),
      .rule = rule_of(score, rho, normalize, scale),
      .valid = ptr_or_null<const uint8_t>(valid, "expert_choice: valid"),
      .ids = ptr<const int32_t>(ids_TE, "expert_choice: ids"),
      .grad_weights = view(grad, "expert_choice: gradient"),
      .grad_lse_squares = view(squares, "expert_choice: gradient of lse_squares"),
      .grad_logits = mut_view(out, "expert_choice: grad_logits")};
  run(logits.device(), args, expert_choice_backward_cpu, &CudaKernels::expert_choice_backward);
  return out;
}

// LONG: a schema's arguments
ChoiceTensors choose_autograd(const at::Tensor& logits_TE, const Optional& valid_T,
                              const Optional& given_TE, std::string score, double rho,
                              bool normalize, double scale) {
  static const auto op = raw_op<decltype(choose_device)>("troupe::expert_choice");
  ChoiceTensors out = op(logits_TE, valid_T, given_TE, score, rho, normalize, scale);
  const auto& [ids, weights, counts, squares] = out;
  record({.name = "expert_choice",
          .inputs = {logits_TE},
          .outputs = {weights, squares},
          .saved = {logits_TE, ids, valid_T.value_or(at::Tensor())},
          .backward = [score, rho, normalize, scale](const Gradients& g) -> TensorList {
            static const auto back =
                raw_op<decltype(backward_device)>("troupe::expert_choice_backward");
            return {back(g.outputs[0], g.outputs[1], g.saved[0], g.saved[1], optional(g.saved[2]),
                         score, rho, normalize, scale)};
          }});
  return out;
}

}  // namespace

ExpertChoiceResult expert_choice(const at::Tensor& logits_TE, const ExpertChoiceOptions& o) {
  const ExpertChoiceRule& r = o.rule;
  const auto [ids, weights, counts, squares] =
      choose_autograd(logits_TE, optional(o.valid_T), optional(o.given_ids_TE), name_of(r.score),
                      r.rho, r.normalize, r.scale);
  return {ids, weights, counts, squares.reshape({})};
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m,
         "expert_choice(Tensor logits, Tensor? valid, Tensor? given_ids, str score, "
         "float rho, bool normalize=False, float scale=1.) -> (Tensor ids, Tensor weights, Tensor "
         "counts, "
         "Tensor lse_squares)",
         choose_device, choose_meta, choose_autograd);
  define(m,
         "expert_choice_backward(Tensor grad_weights, Tensor grad_lse_squares, Tensor logits, "
         "Tensor ids, Tensor? valid, str score, float rho, bool normalize, float scale) -> Tensor",
         backward_device, backward_meta);
}

}  // namespace troupe
