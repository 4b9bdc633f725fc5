#include "troupe/ops/support/index_check.h"

#include "troupe/kernels/index_check/index_check.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

std::string plan_field(const char* op, const char* name) {
  return std::string(op) + ": the plan's " + name;
}

}  // namespace

void check_indices(const std::vector<Indices>& all) {
  TROUPE_CHECK(all.size() <= IndexCheck::kMost, "spans", all.size());
  if (all.empty()) return;
  IndexCheck args;
  std::vector<at::Tensor> packed;
  const auto ints = [&](const at::Tensor& x, const char* name) {
    return ptr<const int32_t>(packed.emplace_back(x.contiguous()), name);
  };
  for (const Indices& x : all) {
    const char* name = x.name.c_str();
    IndexSpan& span = args.spans[args.count++];
    span = {.name = name,
            .wide = x.values.scalar_type() == at::kLong,
            .size = x.values.numel(),
            .low = x.low,
            .high = x.high,
            .rising = x.rising};
    const at::Tensor& values = packed.emplace_back(x.values.contiguous());
    span.data = span.wide ? static_cast<const void*>(ptr<const int64_t>(values, name))
                          : ptr<const int32_t>(values, name);
    if (x.offset != nullptr) span.offset = ints(*x.offset, name);
    if (x.used != nullptr) span.used = ints(*x.used, name) + x.used->numel() - 1;
  }
  run(all.front().values.device(), args, index_check_cpu, &CudaKernels::index_check);
}

void check_segments(const at::Tensor& offset, int64_t rows, const char* name) {
  check_indices({{.name = name, .values = offset, .low = 0, .high = rows, .rising = true}});
}

void check_row_maps(const Plan& p, const char* op) {
  const int64_t T = p.slot_row.size(0), K = p.slot_row.size(1), R = p.row_src.size(0);
  check_indices({{plan_field(op, "row_src"), p.row_src, -1, T - 1},
                 {plan_field(op, "row_slot"), p.row_slot, -1, T * K - 1},
                 {plan_field(op, "slot_row"), p.slot_row, -1, R - 1}});
}

void check_slot_rows(const Plan& p, const char* op) {
  check_indices({{plan_field(op, "slot_row"), p.slot_row, -1, p.row_src.size(0) - 1}});
}

void check_whole_plan(const Plan& p, const char* op) {
  const int64_t T = p.slot_row.size(0), K = p.slot_row.size(1), R = p.row_src.size(0);
  check_indices({{plan_field(op, "expert_offset"), p.expert_offset, 0, R, /*rising=*/true},
                 {plan_field(op, "counts"), p.counts, 0, R, /*rising=*/false, &p.expert_offset},
                 {plan_field(op, "row_src"), p.row_src, -1, T - 1},
                 {plan_field(op, "row_slot"), p.row_slot, -1, T * K - 1},
                 {plan_field(op, "slot_row"), p.slot_row, -1, R - 1}});
}

}  // namespace troupe
