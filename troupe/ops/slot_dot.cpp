#include "troupe/ops/slot_dot.h"

#include <ATen/ops/empty.h>

#include "troupe/kernels/slot_dot/slot_dot.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/index_check.h"
#include "troupe/ops/support/plan_check.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

at::Tensor slot_dot_meta(const at::Tensor& rows_RD, const at::Tensor& x_TD,
                         at::TensorList tensors) {
  const Plan plan = plan_from(tensors, "slot_dot");
  check_plan(plan, x_TD, "slot_dot");
  check_sizes(x_TD, {plan.slot_row.sym_size(0), -1}, "slot_dot: x");
  check_sizes(rows_RD, {plan.row_src.sym_size(0), x_TD.sym_size(1)}, "slot_dot: rows");
  check_dtype(rows_RD, x_TD.scalar_type(), "slot_dot: rows");
  check_same_device(rows_RD, x_TD, "slot_dot: rows");
  const auto wide = wide_type(x_TD);
  return at::empty_symint(plan.slot_row.sym_sizes(), x_TD.options().dtype(wide));
}

at::Tensor slot_dot_device(const at::Tensor& rows_RD, const at::Tensor& x_TD,
                           at::TensorList tensors) {
  at::Tensor out = slot_dot_meta(rows_RD, x_TD, tensors);
  const Plan plan = plan_from(tensors, "slot_dot");
  check_slot_rows(plan, "slot_dot");
  const at::Tensor rows = rowwise(rows_RD), x = rowwise(x_TD);
  const SlotDot args{.plan = plan_ref(plan, "slot_dot"),
                     .rows = view(rows, "slot_dot: rows"),
                     .x = view(x, "slot_dot: x"),
                     .out = mut_view(out, "slot_dot: out")};
  run(x.device(), args, slot_dot_cpu, &CudaKernels::slot_dot);
  return out;
}

}  // namespace

at::Tensor slot_dot(const at::Tensor& rows_RD, const at::Tensor& x_TD, const Plan& plan) {
  static const auto op = raw_op<decltype(slot_dot_device)>("troupe::slot_dot");
  return op(rows_RD, x_TD, plan_tensors(plan));
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m, "slot_dot(Tensor rows, Tensor x, Tensor[] plan) -> Tensor", slot_dot_device,
         slot_dot_meta);
}

}  // namespace troupe
