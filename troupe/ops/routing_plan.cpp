#include "troupe/ops/routing_plan.h"

#include <ATen/ops/empty.h>

#include <tuple>

#include "troupe/core/number/round.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using PlanTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using WithTiles =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

void check_plan_ids(const at::Tensor& ids) {
  check_sizes(ids, {-1, -1}, "routing_plan: ids");
  if (ids.scalar_type() != at::kLong) check_dtype(ids, at::kInt, "routing_plan: ids");
}

PlanShape shape_of(const at::Tensor& ids, const PlanOptions& o, int64_t tile_height) {
  check_plan_ids(ids);
  const PlanShape shape{.tokens = ids.size(0),
                        .choices = ids.size(1),
                        .experts = o.experts,
                        .alignment = o.alignment,
                        .capacity = o.capacity,
                        .tile_height = tile_height};
  row_bound(shape);  // refuses what is too large, before anything is allocated
  return shape;
}

// row_bound of a token count that may be symbolic. With E or more slots, as all but the smallest
// problems have, it is linear in their number.
c10::SymInt plan_rows(const at::Tensor& ids, const PlanOptions& o) {
  TROUPE_CHECK(o.experts >= 1 && o.alignment >= 1 && o.capacity >= 0, "routing_plan: experts is",
               o.experts, ", alignment", o.alignment, ", capacity", o.capacity);
  c10::SymInt slots = ids.sym_size(0) * ids.sym_size(1);
  if (o.capacity > 0) return o.experts * round_up(o.capacity, o.alignment);
  if (o.alignment == 1) return slots;
  const c10::SymInt used = slots.min(o.experts);
  return (slots + used * (o.alignment - 1)) / o.alignment * o.alignment;
}

PlanTensors empty_plan(const at::Tensor& ids_TK, const PlanOptions& o) {
  check_plan_ids(ids_TK);
  const auto ints = ids_TK.options().dtype(at::kInt);
  const c10::SymInt R = plan_rows(ids_TK, o);
  return {at::empty_symint({o.experts + 1}, ints), at::empty_symint({R}, ints),
          at::empty_symint({R}, ints), at::empty_symint(ids_TK.sym_sizes(), ints),
          at::empty_symint({o.experts}, ints.dtype(at::kLong))};
}

PlanTiles empty_tiles(const at::Tensor& ids_TK, int64_t height, const PlanOptions& o) {
  TROUPE_CHECK(height > 0, "routing_plan_tiles: height must be above 0; it is", height);
  const auto ints = ids_TK.options().dtype(at::kInt);
  const c10::SymInt tiles = (plan_rows(ids_TK, o) + (height - 1)) / height + o.experts;
  return {at::empty_symint({tiles, 2}, ints), at::empty_symint({1}, ints)};
}

// Without tiles: an absent list.
void fill(const at::Tensor& ids_TK, const PlanShape& shape, const PlanTensors& out,
          const PlanTiles& tiles) {
  const at::Tensor ids = int_ids(ids_TK, shape.experts).contiguous();
  RoutingPlan args{.shape = shape,
                   .ids = ptr<const int32_t>(ids, "routing_plan: ids"),
                   .counts = ptr<int64_t>(std::get<4>(out), "counts"),
                   .expert_offset = ptr<int32_t>(std::get<0>(out), "expert_offset"),
                   .row_src = ptr<int32_t>(std::get<1>(out), "row_src"),
                   .row_slot = ptr<int32_t>(std::get<2>(out), "row_slot"),
                   .slot_row = ptr<int32_t>(std::get<3>(out), "slot_row")};
  if (tiles.list.defined()) {
    args.tile_list = ptr<int32_t>(tiles.list, "tile_list");
    args.tile_count = ptr<int32_t>(tiles.count, "tile_count");
  }
  const at::Tensor workspace = at::empty({workspace_bytes(args)}, ids.options().dtype(at::kByte));
  args.workspace = workspace.mutable_data_ptr();
  run(ids.device(), args, routing_plan_cpu, &CudaKernels::routing_plan);
}

PlanTensors routing_plan_meta(const at::Tensor& ids_TK, int64_t experts, int64_t alignment,
                              int64_t capacity) {
  return empty_plan(ids_TK, {experts, alignment, capacity});
}

PlanTensors routing_plan_device(const at::Tensor& ids_TK, int64_t experts, int64_t alignment,
                                int64_t capacity) {
  const PlanOptions options{experts, alignment, capacity};
  const PlanShape shape = shape_of(ids_TK, options, 0);
  const PlanTensors out = empty_plan(ids_TK, options);
  fill(ids_TK, shape, out, {});
  return out;
}

WithTiles empty_both(const at::Tensor& ids_TK, int64_t height, const PlanOptions& o) {
  const PlanTiles tiles = empty_tiles(ids_TK, height, o);
  return std::tuple_cat(empty_plan(ids_TK, o), std::make_tuple(tiles.list, tiles.count));
}

WithTiles routing_plan_tiles_meta(const at::Tensor& ids_TK, int64_t experts, int64_t height,
                                  int64_t alignment, int64_t capacity) {
  return empty_both(ids_TK, height, {experts, alignment, capacity});
}

WithTiles routing_plan_tiles_device(const at::Tensor& ids_TK, int64_t experts, int64_t height,
                                    int64_t alignment, int64_t capacity) {
  const PlanOptions options{experts, alignment, capacity};
  const PlanShape shape = shape_of(ids_TK, options, height);
  const WithTiles out = empty_both(ids_TK, height, options);
  const auto& [offset, src, slot, row, counts, list, count] = out;
  fill(ids_TK, shape, {offset, src, slot, row, counts}, {list, count});
  return out;
}

}  // namespace

Plan routing_plan(const at::Tensor& ids_TK, const PlanOptions& o) {
  static const auto op = raw_op<decltype(routing_plan_device)>("troupe::routing_plan");
  const auto [offset, src, slot, row, counts] = op(ids_TK, o.experts, o.alignment, o.capacity);
  return {offset, src, slot, row, counts};
}

std::pair<Plan, PlanTiles> routing_plan_tiles(const at::Tensor& ids_TK, int64_t height,
                                              const PlanOptions& o) {
  static const auto op = raw_op<decltype(routing_plan_tiles_device)>("troupe::routing_plan_tiles");
  const auto [offset, src, slot, row, counts, list, count] =
      op(ids_TK, o.experts, height, o.alignment, o.capacity);
  return {{offset, src, slot, row, counts}, {list, count}};
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m,
         "routing_plan(Tensor ids, int experts, int alignment=1, int capacity=0) -> "
         "(Tensor expert_offset, Tensor row_src, Tensor row_slot, Tensor slot_row, Tensor counts)",
         routing_plan_device, routing_plan_meta);
  define(m,
         "routing_plan_tiles(Tensor ids, int experts, int height, int alignment=1, int capacity=0) "
         "-> (Tensor expert_offset, Tensor row_src, Tensor row_slot, Tensor slot_row, "
         "Tensor counts, Tensor tile_list, Tensor tile_count)",
         routing_plan_tiles_device, routing_plan_tiles_meta);
}

}  // namespace troupe
