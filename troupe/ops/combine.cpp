#include "troupe/ops/combine.h"

#include <ATen/ops/empty.h>

#include "troupe/kernels/combine/combine.h"
#include "troupe/ops/permute.h"
#include "troupe/ops/slot_dot.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/index_check.h"
#include "troupe/ops/support/plan_check.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Optional = std::optional<at::Tensor>;

at::Tensor combine_meta(const at::Tensor& y_RD, const Optional& weights_TK,
                        const Optional& addend_TD, at::TensorList tensors) {
  const Plan plan = plan_from(tensors, "combine");
  check_plan(plan, y_RD, "combine");
  check_sizes(y_RD, {plan.row_src.sym_size(0), -1}, "combine: y");
  const c10::SymInt T = plan.slot_row.sym_size(0), K = plan.slot_row.sym_size(1),
                    D = y_RD.sym_size(1);
  if (weights_TK.has_value()) {
    check_sizes(*weights_TK, {T, K}, "combine: weights");
    check_dtype(*weights_TK, wide_type(y_RD), "combine: weights");
    check_same_device(*weights_TK, y_RD, "combine: weights");
  }
  if (addend_TD.has_value()) {
    check_sizes(*addend_TD, {T, D}, "combine: addend");
    if (addend_TD->scalar_type() != at::kFloat) {
      check_dtype(*addend_TD, y_RD.scalar_type(), "combine: addend");
    }
    check_same_device(*addend_TD, y_RD, "combine: addend");
  }
  return at::empty_symint({T, D}, y_RD.options());
}

at::Tensor combine_device(const at::Tensor& y_RD, const Optional& weights_TK,
                          const Optional& addend_TD, at::TensorList tensors) {
  at::Tensor out = combine_meta(y_RD, weights_TK, addend_TD, tensors);
  const Plan plan = plan_from(tensors, "combine");
  check_slot_rows(plan, "combine");
  const at::Tensor y = rowwise(y_RD);
  const at::Tensor weights = weights_TK.has_value() ? weights_TK->contiguous() : at::Tensor();
  const at::Tensor addend = addend_TD.has_value() ? rowwise(*addend_TD) : at::Tensor();
  Combine args{.plan = plan_ref(plan, "combine"),
               .y = view(y, "combine: y"),
               .out = mut_view(out, "combine: out")};
  if (weights.defined()) args.weights = view(weights, "combine: weights");
  if (addend.defined()) args.addend = view(addend, "combine: addend");
  run(y.device(), args, combine_cpu, &CudaKernels::combine);
  return out;
}

// Gradients: a permute with the same weights, the dot of each row with its token's, and the
// gradient itself.
at::Tensor combine_autograd(const at::Tensor& y_RD, const Optional& weights_TK,
                            const Optional& addend_TD, at::TensorList tensors) {
  static const auto op = raw_op<decltype(combine_device)>("troupe::combine");
  at::Tensor out = op(y_RD, weights_TK, addend_TD, tensors);
  const at::Tensor weights = weights_TK.value_or(at::Tensor());
  const at::Tensor addend = addend_TD.value_or(at::Tensor());
  TensorList saved{weights, weights.defined() && weights.requires_grad() ? y_RD : at::Tensor()};
  saved.insert(saved.end(), tensors.begin(), tensors.end());
  const auto addend_type = addend.defined() ? addend.scalar_type() : y_RD.scalar_type();
  record({.name = "combine",
          .inputs = {y_RD, weights, addend},
          .outputs = {out},
          .saved = saved,
          .backward = [addend_type](const Gradients& g) -> TensorList {
            const Plan plan = plan_from(at::TensorList(g.saved).slice(2), "combine_backward");
            const at::Tensor &grad = g.outputs[0], &w = g.saved[0], &y = g.saved[1];
            const Optional scale = w.defined() ? Optional(w) : std::nullopt;
            return {g.needs[0] ? permute(grad, plan, scale) : at::Tensor(),
                    g.needs[1] ? slot_dot(y, grad, plan) : at::Tensor(),
                    g.needs[2] ? grad.to(addend_type) : at::Tensor()};
          }});
  return out;
}

}  // namespace

at::Tensor combine(const at::Tensor& y_RD, const Plan& plan, const Optional& weights_TK,
                   const Optional& addend_TD) {
  return combine_autograd(y_RD, weights_TK, addend_TD, plan_tensors(plan));
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m, "combine(Tensor y, Tensor? weights, Tensor? addend, Tensor[] plan) -> Tensor",
         combine_device, combine_meta, combine_autograd);
}

}  // namespace troupe
