#include "troupe/ops/routing_plan.h"

#include <ATen/ops/empty.h>

#include <tuple>

#include "troupe/ops/define.h"
#include "troupe/ops/run.h"
#include "troupe/ops/view.h"

namespace troupe {
namespace {

using Out = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

PlanShape shape_of(const at::Tensor& ids, int64_t experts, int64_t alignment, int64_t capacity) {
  check_sizes(ids, {-1, -1}, "routing_plan: ids");
  check_dtype(ids, at::kInt, "routing_plan: ids");
  return {.tokens = ids.size(0),
          .choices = ids.size(1),
          .experts = experts,
          .alignment = alignment,
          .capacity = capacity};
}

Out routing_plan_meta(const at::Tensor& ids_TK, int64_t experts, int64_t alignment,
                      int64_t capacity) {
  const PlanShape shape = shape_of(ids_TK, experts, alignment, capacity);
  const auto ints = ids_TK.options();
  const int64_t R = row_bound(shape);
  return {at::empty({experts + 1}, ints), at::empty({R}, ints), at::empty({R}, ints),
          at::empty({shape.tokens, shape.choices}, ints),
          at::empty({experts}, ints.dtype(at::kLong))};
}

Out routing_plan_device(const at::Tensor& ids_TK, int64_t experts, int64_t alignment,
                        int64_t capacity) {
  Out out = routing_plan_meta(ids_TK, experts, alignment, capacity);
  const at::Tensor ids = ids_TK.contiguous();
  RoutingPlan args{.shape = shape_of(ids, experts, alignment, capacity),
                   .ids = ptr<const int32_t>(ids, "routing_plan: ids"),
                   .counts = ptr<int64_t>(std::get<4>(out), "counts"),
                   .expert_offset = ptr<int32_t>(std::get<0>(out), "expert_offset"),
                   .row_src = ptr<int32_t>(std::get<1>(out), "row_src"),
                   .row_slot = ptr<int32_t>(std::get<2>(out), "row_slot"),
                   .slot_row = ptr<int32_t>(std::get<3>(out), "slot_row")};
  const at::Tensor workspace = at::empty({workspace_bytes(args)}, ids.options().dtype(at::kByte));
  args.workspace = workspace.mutable_data_ptr();
  run(ids.device(), args, routing_plan_cpu, &CudaKernels::routing_plan);
  return out;
}

}  // namespace

Plan routing_plan(const at::Tensor& ids_TK, const PlanOptions& o) {
  static const auto op = raw_op<decltype(routing_plan_device)>("troupe::routing_plan");
  const auto [offset, src, slot, row, counts] = op(ids_TK, o.experts, o.alignment, o.capacity);
  return {offset, src, slot, row, counts};
}

void define_routing_plan(torch::Library& m) {
  define(m,
         "routing_plan(Tensor ids, int experts, int alignment=1, int capacity=0) -> "
         "(Tensor expert_offset, Tensor row_src, Tensor row_slot, Tensor slot_row, Tensor counts)",
         routing_plan_device, routing_plan_meta);
}

}  // namespace troupe
