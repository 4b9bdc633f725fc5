#include "troupe/ops/permute.h"

#include <ATen/ops/empty.h>

#include "troupe/kernels/permute/permute.h"
#include "troupe/ops/combine.h"
#include "troupe/ops/slot_dot.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/index_check.h"
#include "troupe/ops/support/plan_check.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Weights = std::optional<at::Tensor>;

at::Tensor permute_meta(const at::Tensor& x_TD, const Weights& weights_TK, at::TensorList tensors) {
  const Plan plan = plan_from(tensors, "permute");
  check_plan(plan, x_TD, "permute");
  check_sizes(x_TD, {plan.slot_row.sym_size(0), -1}, "permute: x");
  if (weights_TK.has_value()) {
    check_sizes(*weights_TK, {x_TD.sym_size(0), plan.slot_row.sym_size(1)}, "permute: weights");
    check_dtype(*weights_TK, wide_type(x_TD), "permute: weights");
    check_same_device(*weights_TK, x_TD, "permute: weights");
  }
  return at::empty_symint({plan.row_src.sym_size(0), x_TD.sym_size(1)}, x_TD.options());
}

at::Tensor permute_device(const at::Tensor& x_TD, const Weights& weights_TK,
                          at::TensorList tensors) {
  at::Tensor out = permute_meta(x_TD, weights_TK, tensors);
  const Plan plan = plan_from(tensors, "permute");
  check_row_maps(plan, "permute");
  const at::Tensor x = rowwise(x_TD);
  Permute args{.plan = plan_ref(plan, "permute"),
               .x = view(x, "permute: x"),
               .out = mut_view(out, "permute: out"),
               .clear_tail = true};
  at::Tensor weights;
  if (weights_TK.has_value()) {
    weights = weights_TK->contiguous();
    args.weights = view(weights, "permute: weights");
  }
  run(x.device(), args, permute_cpu, &CudaKernels::permute);
  return out;
}

// Gradients: a combine with the same weights, and the dot of each row with its token's.
at::Tensor permute_autograd(const at::Tensor& x_TD, const Weights& weights_TK,
                            at::TensorList tensors) {
  static const auto op = raw_op<decltype(permute_device)>("troupe::permute");
  at::Tensor out = op(x_TD, weights_TK, tensors);
  const at::Tensor weights = weights_TK.value_or(at::Tensor());
  TensorList saved{weights, weights.defined() && weights.requires_grad() ? x_TD : at::Tensor()};
  saved.insert(saved.end(), tensors.begin(), tensors.end());
  record({.name = "permute",
          .inputs = {x_TD, weights},
          .outputs = {out},
          .saved = saved,
          .backward = [](const Gradients& g) -> TensorList {
            const Plan plan = plan_from(at::TensorList(g.saved).slice(2), "permute_backward");
            const at::Tensor &grad = g.outputs[0], &w = g.saved[0], &x = g.saved[1];
            const Weights scale = w.defined() ? Weights(w) : std::nullopt;
            return {g.needs[0] ? combine(grad, plan, scale) : at::Tensor(),
                    g.needs[1] ? slot_dot(grad, x, plan) : at::Tensor()};
          }});
  return out;
}

}  // namespace

at::Tensor permute(const at::Tensor& x_TD, const Plan& plan, const Weights& weights_TK) {
  return permute_autograd(x_TD, weights_TK, plan_tensors(plan));
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m, "permute(Tensor x, Tensor? weights, Tensor[] plan) -> Tensor", permute_device,
         permute_meta, permute_autograd);
}

}  // namespace troupe
