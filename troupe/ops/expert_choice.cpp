#include "troupe/ops/expert_choice.h"

#include <ATen/ops/empty.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "troupe/ops/support/arg_check.h"
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

// A rule as an operator's arguments give it.
struct ChoiceRule {
  std::string score;
  double rho;
  bool normalize;
  double scale;

  ExpertChoiceRule rule() const {
    for (const Score s : {Score::kSoftmax, Score::kSigmoid, Score::kSqrtSoftplus}) {
      if (score == name_of(s)) return {s, rho, normalize, static_cast<float>(scale)};
    }
    TROUPE_CHECK(false, "expert_choice: score must be softmax, sigmoid or sqrtsoftplus; it is",
                 score);
    return {};
  }
};

struct ExpertChoiceArgs {
  const at::Tensor& logits;   // [T, E]
  const Optional& valid;      // [T]
  const Optional& given_ids;  // [T, E]
  ChoiceRule rule;

  static constexpr const char *kName = "expert_choice",
                              *kResults =
                                  "(Tensor ids, Tensor weights, Tensor counts, Tensor lse_squares)";
  static auto visit(auto& a, auto&& f) {
    return f(arg("logits", a.logits, Dims{"TE"}), arg("valid", a.valid, Dims{"T"}),
             arg("given_ids", a.given_ids, Dims{"TE"}), arg("score", a.rule.score),
             arg("rho", a.rule.rho), arg("normalize", a.rule.normalize, Default{false}),
             arg("scale", a.rule.scale, Default{1.}));
  }
};

struct ExpertChoiceBackwardArgs {
  const at::Tensor& grad_weights;  // [T, E]
  const at::Tensor& grad_lse_squares;
  const at::Tensor& logits;  // [T, E]
  const at::Tensor& ids;     // [T, E]
  const Optional& valid;     // [T]
  ChoiceRule rule;

  static constexpr const char *kName = "expert_choice_backward", *kResults = "Tensor";
  static auto visit(auto& a, auto&& f) {
    return f(arg("grad_weights", a.grad_weights, Dims{"TE"}),
             arg("grad_lse_squares", a.grad_lse_squares, Dims{"11"}),
             arg("logits", a.logits, Dims{"TE"}, kLead), arg("ids", a.ids, Dims{"TE"}),
             arg("valid", a.valid), arg("score", a.rule.score), arg("rho", a.rule.rho),
             arg("normalize", a.rule.normalize), arg("scale", a.rule.scale));
  }
};

Optional optional(const at::Tensor& t) {
  return t.defined() ? Optional(t.contiguous()) : std::nullopt;
}
Optional dense(const Optional& t) {
  return t.has_value() ? optional(*t) : std::nullopt;
}

ChoiceTensors choose_meta(const ExpertChoiceArgs& a) {
  a.rule.rule();
  const DimSizes sizes = check_args(a);
  const c10::SymInt &T = sizes['T'], &E = sizes['E'];
  const auto ints = a.logits.options().dtype(at::kInt).requires_grad(false);
  const bool wide = a.logits.scalar_type() == at::kDouble;
  const auto floats = ints.dtype(wide ? at::kDouble : at::kFloat);
  return {at::empty_symint({T, E}, ints), at::empty_symint({T, E}, floats),
          at::empty_symint({E}, ints.dtype(at::kLong)), at::empty_symint({1, 1}, floats)};
}

ChoiceTensors choose_device(const ExpertChoiceArgs& a) {
  ChoiceTensors out = choose_meta(a);
  const at::Tensor logits = rowwise(a.logits);
  const Optional valid = dense(a.valid), given = dense(a.given_ids);
  ExpertChoice args{.logits = view(logits, "expert_choice: logits"),
                    .rule = a.rule.rule(),
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

at::Tensor choose_backward_meta(const ExpertChoiceBackwardArgs& a) {
  a.rule.rule();
  check_args(a);
  return at::empty_symint(a.logits.sym_sizes(), a.logits.options());
}

at::Tensor choose_backward_device(const ExpertChoiceBackwardArgs& a) {
  at::Tensor out = choose_backward_meta(a);
  const at::Tensor logits = rowwise(a.logits), grad = a.grad_weights.contiguous();
  const at::Tensor squares = a.grad_lse_squares.contiguous();
  const Optional valid = dense(a.valid);
  const ExpertChoiceBackward args{
      .logits = view(logits, "expert_choice: logits"),
      .rule = a.rule.rule(),
      .valid = ptr_or_null<const uint8_t>(valid, "expert_choice: valid"),
      .ids = ptr<const int32_t>(a.ids, "expert_choice: ids"),
      .grad_weights = view(grad, "expert_choice: gradient"),
      .grad_lse_squares = view(squares, "expert_choice: gradient of lse_squares"),
      .grad_logits = mut_view(out, "expert_choice: grad_logits")};
  run(logits.device(), args, expert_choice_backward_cpu, &CudaKernels::expert_choice_backward);
  return out;
}

ChoiceTensors choose_op(const ExpertChoiceArgs& a) {
  static const auto op = raw_op<decltype(choose_device)>();
  ChoiceTensors out = op(a);
  const auto& [ids, weights, counts, squares] = out;
  record({.name = "expert_choice",
          .inputs = {a.logits},
          .outputs = {weights, squares},
          .saved = {a.logits, ids, a.valid.value_or(at::Tensor())},
          .backward = [rule = a.rule](const Gradients& g) -> TensorList {
            static const auto back = raw_op<decltype(choose_backward_device)>();
            return {back(
                {g.outputs[0], g.outputs[1], g.saved[0], g.saved[1], optional(g.saved[2]), rule})};
          }});
  return out;
}

}  // namespace

ExpertChoiceResult expert_choice(const at::Tensor& logits_TE, const ExpertChoiceOptions& o) {
  const ExpertChoiceRule& r = o.rule;
  const auto [ids, weights, counts, squares] =
      choose_op({logits_TE,
                 optional(o.valid_T),
                 optional(o.given_ids_TE),
                 {name_of(r.score), r.rho, r.normalize, r.scale}});
  return {ids, weights, counts, squares.reshape({})};
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define<choose_device, choose_meta, choose_op>(m);
  define<choose_backward_device, choose_backward_meta>(m);
}

}  // namespace troupe
