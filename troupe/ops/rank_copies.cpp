#include "troupe/ops/rank_copies.h"

#include <ATen/ops/empty.h>

#include <array>
#include <tuple>

#include "troupe/kernels/rank_copies/rank_copies.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using MaybeTensor = std::optional<at::Tensor>;
using Lists = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Told = std::tuple<at::Tensor, at::Tensor>;

void check_ints(const at::Tensor& x, std::initializer_list<int64_t> sizes, at::ScalarType type,
                const at::Tensor& beside, const char* name) {
  check_sizes(x, sizes, name);
  check_dtype(x, type, name);
  check_same_device(x, beside, name);
}

// places: owners [E, M] and replicas [E]. targets: the first rank, ranks a target, and how many.
ListCopies list_shape(const at::Tensor& ids_TK, const MaybeTensor& index_T, at::TensorList places,
                      bool slices, at::IntArrayRef targets) {
  check_ints(ids_TK, {-1, -1}, at::kInt, ids_TK, "list_copies: ids");
  TROUPE_CHECK(places.size() == 2, "list_copies: places must be owners and replicas; there are",
               places.size());
  check_ints(places[0], {-1, -1}, at::kLong, ids_TK, "list_copies: owners");
  check_ints(places[1], {places[0].size(0)}, at::kLong, ids_TK, "list_copies: replicas");
  if (index_T.has_value()) {
    check_ints(*index_T, {ids_TK.size(0)}, at::kLong, ids_TK, "list_copies: index");
  }
  TROUPE_CHECK(targets.size() == 3 && targets[0] >= 0 && targets[1] > 0 && targets[2] >= 0,
               "list_copies: targets must be the first rank, ranks each and their number; they are",
               targets);
  return {.tokens = ids_TK.size(0),
          .choices = ids_TK.size(1),
          .experts = places[0].size(0),
          .owners_each = places[0].size(1),
          .slices = slices,
          .first = targets[0],
          .per = targets[1],
          .targets = targets[2]};
}

Lists list_copies_meta(const at::Tensor& ids_TK, const MaybeTensor& index_T, at::TensorList places,
                       bool slices, at::IntArrayRef targets, int64_t /*capacity*/) {
  const ListCopies a = list_shape(ids_TK, index_T, places, slices, targets);
  const auto ints = ids_TK.options();
  return {at::empty({a.tokens, a.choices, a.parts()}, ints), at::empty({a.tokens, a.width()}, ints),
          at::empty({a.targets, 3}, ints)};
}

Lists list_copies_device(const at::Tensor& ids_TK, const MaybeTensor& index_T,
                         at::TensorList places, bool slices, at::IntArrayRef targets,
                         int64_t capacity) {
  const Lists out = list_copies_meta(ids_TK, index_T, places, slices, targets, capacity);
  const at::Tensor ids = ids_TK.contiguous();
  const at::Tensor owners = places[0].contiguous(), replicas = places[1].contiguous();
  const MaybeTensor index = index_T.has_value() ? MaybeTensor(index_T->contiguous()) : std::nullopt;
  ListCopies args = list_shape(ids, index, places, slices, targets);
  args.capacity = capacity;
  args.ids = ptr<const int32_t>(ids, "list_copies: ids");
  args.index = ptr_or_null<const int64_t>(index, "list_copies: index");
  args.owners = ptr<const int64_t>(owners, "list_copies: owners");
  args.replicas = ptr<const int64_t>(replicas, "list_copies: replicas");
  args.row_target = ptr<int32_t>(std::get<0>(out), "list_copies: row_target");
  args.copy_target = ptr<int32_t>(std::get<1>(out), "list_copies: copy_target");
  args.counts = ptr<int32_t>(std::get<2>(out), "list_copies: counts");
  run(ids.device(), args, list_copies_cpu, &CudaKernels::list_copies);
  return out;
}

int64_t words_of(const at::Tensor& scores_TK) {
  const auto bytes = static_cast<int64_t>(scores_TK.element_size());
  TROUPE_CHECK(bytes % 4 == 0, "tell_copies: scores must be of 4 or 8 bytes an element; they are",
               scores_TK.scalar_type());
  return scores_TK.size(1) * bytes / 4;
}

// lists: row_target [T, K, S] and copy_target [T, L] of list_copies.
Told tell_copies_meta(const at::Tensor& ids_TK, const at::Tensor& scores_TK, at::TensorList lists,
                      const at::Tensor& copy_slot_C, const MaybeTensor& local_WE, bool with_token) {
  const int64_t T = ids_TK.size(0), K = ids_TK.size(1), C = copy_slot_C.size(0);
  check_ints(ids_TK, {-1, -1}, at::kInt, ids_TK, "tell_copies: ids");
  check_sizes(scores_TK, {T, K}, "tell_copies: scores");
  check_same_device(scores_TK, ids_TK, "tell_copies: scores");
  TROUPE_CHECK(lists.size() == 2, "tell_copies: lists must be of rows and of copies; there are",
               lists.size());
  check_ints(lists[0], {T, K, -1}, at::kInt, ids_TK, "tell_copies: row_target");
  check_ints(lists[1], {T, -1}, at::kInt, ids_TK, "tell_copies: copy_target");
  check_ints(copy_slot_C, {-1}, at::kInt, ids_TK, "tell_copies: copy_slot");
  if (local_WE.has_value()) {
    check_ints(*local_WE, {-1, -1}, at::kInt, ids_TK, "tell_copies: local");
  }
  const int64_t columns = K + words_of(scores_TK) + (with_token ? 1 : 0);
  const auto ints = ids_TK.options();
  return {at::empty({C}, ints.dtype(at::kLong)), at::empty({C, columns}, ints)};
}

Told tell_copies_device(const at::Tensor& ids_TK, const at::Tensor& scores_TK, at::TensorList lists,
                        const at::Tensor& copy_slot_C, const MaybeTensor& local_WE,
                        bool with_token) {
  const Told out = tell_copies_meta(ids_TK, scores_TK, lists, copy_slot_C, local_WE, with_token);
  const at::Tensor ids = ids_TK.contiguous(), scores = scores_TK.contiguous();
  const at::Tensor rows = lists[0].contiguous(), targets = lists[1].contiguous();
  const at::Tensor slots = copy_slot_C.contiguous();
  const MaybeTensor local = local_WE.has_value() ? MaybeTensor(local_WE->contiguous()) : local_WE;
  const TellCopies args{.tokens = ids.size(0),
                        .choices = ids.size(1),
                        .parts = rows.size(2),
                        .experts = local.has_value() ? local->size(1) : 0,
                        .width = targets.size(1),
                        .copies = slots.size(0),
                        .words = words_of(scores),
                        .with_token = with_token,
                        .ids = ptr<const int32_t>(ids, "tell_copies: ids"),
                        .scores = static_cast<const int32_t*>(scores.const_data_ptr()),
                        .row_target = ptr<const int32_t>(rows, "tell_copies: row_target"),
                        .copy_target = ptr<const int32_t>(targets, "tell_copies: copy_target"),
                        .copy_slot = ptr<const int32_t>(slots, "tell_copies: copy_slot"),
                        .local = ptr_or_null<const int32_t>(local, "tell_copies: local"),
                        .token = ptr<int64_t>(std::get<0>(out), "tell_copies: token"),
                        .told = ptr<int32_t>(std::get<1>(out), "tell_copies: told")};
  run(ids.device(), args, tell_copies_cpu, &CudaKernels::tell_copies);
  return out;
}

}  // namespace

CopyLists list_copies(const at::Tensor& ids_TK, const MaybeTensor& index_T, const CopyTargets& to,
                      int64_t capacity) {
  static const auto op = raw_op<decltype(list_copies_device)>("troupe::list_copies");
  const std::array<at::Tensor, 2> places{to.owners_EM, to.replicas_E};
  const std::array<int64_t, 3> targets{to.first, to.per, to.count};
  auto [rows, copies, counts] = op(ids_TK, index_T, places, to.slices, targets, capacity);
  return {std::move(rows), std::move(copies), std::move(counts)};
}

ToldCopies tell_copies(const at::Tensor& ids_TK, const at::Tensor& scores_TK,
                       const CopyLists& lists, const at::Tensor& copy_slot_C,
                       const MaybeTensor& local_WE, bool with_token) {
  static const auto op = raw_op<decltype(tell_copies_device)>("troupe::tell_copies");
  const std::array<at::Tensor, 2> both{lists.row_target_TKS, lists.copy_target_TL};
  auto [token, told] = op(ids_TK, scores_TK, both, copy_slot_C, local_WE, with_token);
  return {std::move(token), std::move(told)};
}

void define_rank_copies(torch::Library& m) {
  define(m,
         "list_copies(Tensor ids, Tensor? index, Tensor[] places, bool slices, int[] targets, "
         "int capacity) -> (Tensor row_target, Tensor copy_target, Tensor counts)",
         list_copies_device, list_copies_meta);
  define(m,
         "tell_copies(Tensor ids, Tensor scores, Tensor[] lists, Tensor copy_slot, "
         "Tensor? local, bool with_token) -> (Tensor token, Tensor told)",
         tell_copies_device, tell_copies_meta);
}

}  // namespace troupe
