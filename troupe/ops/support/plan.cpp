#include "troupe/ops/support/plan.h"

#include <string>

#include "troupe/ops/support/plan_check.h"
#include "troupe/ops/support/view.h"

namespace troupe {

PlanRef plan_ref(const Plan& p, const char* op) {
  TROUPE_CHECK(p.slot_row.dim() == 2, op, "needs a slot_row of [T, K]; it has", p.slot_row.dim(),
               "dimensions");
  const int64_t E = p.expert_offset.numel() - 1;
  check_sizes(p.expert_offset, {E + 1}, "plan: expert_offset");
  check_sizes(p.row_slot, {p.row_src.size(0)}, "plan: row_slot");
  check_sizes(p.counts, {E}, "plan: counts");
  return {.tokens = p.slot_row.size(0),
          .choices = p.slot_row.size(1),
          .experts = E,
          .rows = p.row_src.size(0),
          .has_pads = true,  // With a capacity there may be as many rows as slots, and yet pads.
          .expert_offset = ptr<const int32_t>(p.expert_offset, "plan: expert_offset"),
          .row_src = ptr<const int32_t>(p.row_src, "plan: row_src"),
          .row_slot = ptr<const int32_t>(p.row_slot, "plan: row_slot"),
          .slot_row = ptr<const int32_t>(p.slot_row, "plan: slot_row"),
          .counts = ptr<const int64_t>(p.counts, "plan: counts")};
}

void check_plan(const Plan& p, const at::Tensor& beside, const char* op) {
  const auto check = [&](const at::Tensor& t, std::initializer_list<c10::SymInt> sizes,
                         at::ScalarType type, const char* field) {
    const std::string name = std::string(op) + ": the plan's " + field;
    check_sizes(t, sizes, name.c_str());
    check_dtype(t, type, name.c_str());
    check_same_device(t, beside, name.c_str());
  };
  check(p.expert_offset, {-1}, at::kInt, "expert_offset");
  check(p.row_src, {-1}, at::kInt, "row_src");
  check(p.row_slot, {p.row_src.sym_size(0)}, at::kInt, "row_slot");
  check(p.slot_row, {-1, -1}, at::kInt, "slot_row");
  check(p.counts, {p.expert_offset.sym_size(0) - 1}, at::kLong, "counts");
}

std::vector<at::Tensor> plan_tensors(const Plan& p) {
  return {p.expert_offset, p.row_src, p.row_slot, p.slot_row, p.counts};
}

Plan plan_from(at::TensorList p, const char* op) {
  TROUPE_CHECK(p.size() == 5, op,
               "needs the plan [expert_offset, row_src, row_slot, slot_row, counts]; it has",
               p.size(), "tensors");
  return {p[0], p[1], p[2], p[3], p[4]};
}

}  // namespace troupe
