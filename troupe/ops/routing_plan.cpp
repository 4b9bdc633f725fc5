#include "troupe/ops/routing_plan.h"

#include <ATen/ops/empty.h>

#include <tuple>

#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using PlanTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using WithTiles =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

PlanShape shape_of(const at::Tensor& ids, const PlanOptions& o, int64_t tile_height) {
  check_sizes(ids, {-1, -1}, "routing_plan: ids");
  check_dtype(ids, at::kInt, "routing_plan: ids");
  return {.tokens = ids.size(0),
          .choices = ids.size(1),
          .experts = o.experts,
          .alignment = o.alignment,
          .capacity = o.capacity,
          .tile_height = tile_height};
}

PlanTensors empty_plan(const at::Tensor& ids_TK, const PlanShape& shape) {
  const auto ints = ids_TK.options();
  const int64_t R = row_bound(shape), E = shape.experts;
  return {at::empty({E + 1}, ints), at::empty({R}, ints), at::empty({R}, ints),
          at::empty({shape.tokens, shape.choices}, ints), at::empty({E}, ints.dtype(at::kLong))};
}

PlanTiles empty_tiles(const at::Tensor& ids_TK, const PlanShape& shape) {
  return {at::empty({tile_bound(shape), 2}, ids_TK.options()), at::empty({1}, ids_TK.options())};
}

// Without tiles: an absent list.
void fill(const at::Tensor& ids_TK, const PlanShape& shape, const PlanTensors& out,
          const PlanTiles& tiles) {
  const at::Tensor ids = ids_TK.contiguous();
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
  return empty_plan(ids_TK, shape_of(ids_TK, {experts, alignment, capacity}, 0));
}

PlanTensors routing_plan_device(const at::Tensor& ids_TK, int64_t experts, int64_t alignment,
                                int64_t capacity) {
  const PlanShape shape = shape_of(ids_TK, {experts, alignment, capacity}, 0);
  const PlanTensors out = empty_plan(ids_TK, shape);
  fill(ids_TK, shape, out, {});
  return out;
}

PlanShape tiled_shape(const at::Tensor& ids_TK, int64_t height, const PlanOptions& o) {
  TROUPE_CHECK(height > 0, "routing_plan_tiles: height must be above 0; it is", height);
  return shape_of(ids_TK, o, height);
}

WithTiles routing_plan_tiles_meta(const at::Tensor& ids_TK, int64_t experts, int64_t height,
                                  int64_t alignment, int64_t capacity) {
  const PlanShape shape = tiled_shape(ids_TK, height, {experts, alignment, capacity});
  const PlanTiles tiles = empty_tiles(ids_TK, shape);
  return std::tuple_cat(empty_plan(ids_TK, shape), std::make_tuple(tiles.list, tiles.count));
}

WithTiles routing_plan_tiles_device(const at::Tensor& ids_TK, int64_t experts, int64_t height,
                                    int64_t alignment, int64_t capacity) {
  const PlanShape shape = tiled_shape(ids_TK, height, {experts, alignment, capacity});
  const PlanTensors out = empty_plan(ids_TK, shape);
  const PlanTiles tiles = empty_tiles(ids_TK, shape);
  fill(ids_TK, shape, out, tiles);
  return std::tuple_cat(out, std::make_tuple(tiles.list, tiles.count));
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

void define_routing_plan(torch::Library& m) {
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
