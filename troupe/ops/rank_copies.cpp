#include "troupe/ops/rank_copies.h"

#include <ATen/ops/empty.h>

#include <array>
#include <limits>
#include <tuple>
#include <vector>

#include "troupe/kernels/rank_copies/rank_copies.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/index_check.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using MaybeTensor = std::optional<at::Tensor>;
using Lists = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Told = std::tuple<at::Tensor, at::Tensor>;

constexpr int64_t kMostTargets = std::numeric_limits<int32_t>::max();

void check_ints(const at::Tensor& x, std::initializer_list<c10::SymInt> sizes, at::ScalarType type,
                const at::Tensor& beside, const char* name) {
  check_sizes(x, sizes, name);
  check_dtype(x, type, name);
  check_same_device(x, beside, name);
}

// owners [E, M], replicas [E]; of `count` targets the first has rank `first`, each `per` ranks.
// LONG: a schema's arguments, as of all that follow
Lists list_copies_meta(const at::Tensor& ids_TK, const MaybeTensor& index_T,
                       const at::Tensor& owners, const at::Tensor& replicas, bool slices,
                       int64_t first, int64_t per, int64_t count, c10::SymInt /*capacity*/) {
  check_ints(ids_TK, {-1, -1}, at::kInt, ids_TK, "list_copies: ids");
  check_ints(owners, {-1, -1}, at::kLong, ids_TK, "list_copies: owners");
  check_ints(replicas, {owners.sym_size(0)}, at::kLong, ids_TK, "list_copies: replicas");
  if (index_T.has_value()) {
    check_ints(*index_T, {ids_TK.sym_size(0)}, at::kLong, ids_TK, "list_copies: index");
  }
  TROUPE_CHECK(first >= 0 && per > 0 && count >= 0, "list_copies: the first rank is", first,
               ", ranks a target", per, ", targets", count);
  const c10::SymInt T = ids_TK.sym_size(0), K = ids_TK.sym_size(1);
  const c10::SymInt parts = slices ? owners.sym_size(1) : c10::SymInt(1);
  const c10::SymInt width = (K * parts).min(count);
  const auto ints = ids_TK.options();
  return {at::empty_symint({T, K, parts}, ints), at::empty_symint({T, width}, ints),
          at::empty_symint({count, 3}, ints)};
}

// LONG: a schema's arguments
Lists list_copies_device(const at::Tensor& ids_TK, const MaybeTensor& index_T,
                         const at::Tensor& owners_EM, const at::Tensor& replicas_E, bool slices,
                         int64_t first, int64_t per, int64_t count, c10::SymInt capacity) {
  const Lists out =
      list_copies_meta(ids_TK, index_T, owners_EM, replicas_E, slices, first, per, count, capacity);
  std::vector<Indices> read;
  if (!slices) read.push_back({"list_copies: replicas", replicas_E, 1, owners_EM.size(1)});
  if (index_T.has_value()) {
    read.push_back({"list_copies: index", *index_T, 0, std::numeric_limits<int64_t>::max()});
  }
  check_indices(read);
  const at::Tensor ids = ids_TK.contiguous();
  const at::Tensor owners = owners_EM.contiguous(), replicas = replicas_E.contiguous();
  const MaybeTensor index = index_T.has_value() ? MaybeTensor(index_T->contiguous()) : std::nullopt;
  const ListCopies args{.tokens = ids.size(0),
                        .choices = ids.size(1),
                        .experts = owners.size(0),
                        .owners_each = owners.size(1),
                        .slices = slices,
                        .first = first,
                        .per = per,
                        .targets = count,
                        .capacity = capacity.guard_int(__FILE__, __LINE__),
                        .ids = ptr<const int32_t>(ids, "list_copies: ids"),
                        .index = ptr_or_null<const int64_t>(index, "list_copies: index"),
                        .owners = ptr<const int64_t>(owners, "list_copies: owners"),
                        .replicas = ptr<const int64_t>(replicas, "list_copies: replicas"),
                        .row_target = ptr<int32_t>(std::get<0>(out), "list_copies: row_target"),
                        .copy_target = ptr<int32_t>(std::get<1>(out), "list_copies: copy_target"),
                        .counts = ptr<int32_t>(std::get<2>(out), "list_copies: counts")};
  run(ids.device(), args, list_copies_cpu, &CudaKernels::list_copies);
  return out;
}

c10::SymInt words_of(const at::Tensor& scores_TK) {
  const auto bytes = static_cast<int64_t>(scores_TK.element_size());
  TROUPE_CHECK(bytes % 4 == 0, "tell_copies: scores must be of 4 or 8 bytes an element; they are",
               scores_TK.scalar_type());
  return scores_TK.sym_size(1) * bytes / 4;
}

// row_target [T, K, S] and copy_target [T, L] of list_copies.
// LONG: a schema's arguments
Told tell_copies_meta(const at::Tensor& ids_TK, const at::Tensor& scores_TK,
                      const at::Tensor& row_target, const at::Tensor& copy_target,
                      const at::Tensor& copy_slot_C, const MaybeTensor& local_WE, bool with_token) {
  const c10::SymInt T = ids_TK.sym_size(0), K = ids_TK.sym_size(1), C = copy_slot_C.sym_size(0);
  check_ints(ids_TK, {-1, -1}, at::kInt, ids_TK, "tell_copies: ids");
  check_sizes(scores_TK, {T, K}, "tell_copies: scores");
  check_same_device(scores_TK, ids_TK, "tell_copies: scores");
  check_ints(row_target, {T, K, -1}, at::kInt, ids_TK, "tell_copies: row_target");
  check_ints(copy_target, {T, -1}, at::kInt, ids_TK, "tell_copies: copy_target");
  check_ints(copy_slot_C, {-1}, at::kInt, ids_TK, "tell_copies: copy_slot");
  if (local_WE.has_value()) {
    check_ints(*local_WE, {-1, -1}, at::kInt, ids_TK, "tell_copies: local");
  }
  const c10::SymInt columns = K + words_of(scores_TK) + (with_token ? 1 : 0);
  const auto ints = ids_TK.options();
  return {at::empty_symint({C}, ints.dtype(at::kLong)), at::empty_symint({C, columns}, ints)};
}

// LONG: a schema's arguments
Told tell_copies_device(const at::Tensor& ids_TK, const at::Tensor& scores_TK,
                        const at::Tensor& row_target, const at::Tensor& copy_target,
                        const at::Tensor& copy_slot_C, const MaybeTensor& local_WE,
                        bool with_token) {
  const Told out = tell_copies_meta(ids_TK, scores_TK, row_target, copy_target, copy_slot_C,
                                    local_WE, with_token);
  const int64_t most = local_WE.has_value() ? local_WE->size(0) : kMostTargets;
  check_indices({{"tell_copies: copy_slot", copy_slot_C, -1, copy_target.numel() - 1},
                 {"tell_copies: copy_target", copy_target, -1, most - 1}});
  const at::Tensor ids = ids_TK.contiguous(), scores = scores_TK.contiguous();
  const at::Tensor rows = row_target.contiguous(), targets = copy_target.contiguous();
  const at::Tensor slots = copy_slot_C.contiguous();
  const MaybeTensor local = local_WE.has_value() ? MaybeTensor(local_WE->contiguous()) : local_WE;
  const TellCopies args{.tokens = ids.size(0),
                        .choices = ids.size(1),
                        .parts = rows.size(2),
                        .experts = local.has_value() ? local->size(1) : 0,
                        .width = targets.size(1),
                        .copies = slots.size(0),
                        .words = words_of(scores).guard_int(__FILE__, __LINE__),
                        .with_token = with_token,
                        .ids = ptr<const int32_t>(ids, "tell_copies: ids"),
                        .scores = static_cast<const int32_t*>(scores.const_data_ptr()),
                        .row_target = ptr<const int32_t>(rows, "tell_copies: row_target"),
                        .copy_target = ptr<const int32_t>(targets, "tell_copies: copy_target"),
                        .copy_slot = ptr<const int32_t>(slots, "tell_copies: copy_slot"),
                        .local = ptr_or_null<const int32_t>(local, "tell_copies: local"),
                        .token = ptr<int64_t>(std::get<0>(out), "tell_copies: token"),
                        .message = ptr<int32_t>(std::get<1>(out), "tell_copies: message")};
  run(ids.device(), args, tell_copies_cpu, &CudaKernels::tell_copies);
  return out;
}

}  // namespace

CopyLists list_copies(const at::Tensor& ids_TK, const MaybeTensor& index_T, const CopyTargets& to,
                      int64_t capacity) {
  static const auto op = raw_op<decltype(list_copies_device)>("troupe::list_copies");
  auto [rows, copies, counts] = op(ids_TK, index_T, to.owners_EM, to.replicas_E, to.slices,
                                   to.first, to.per, to.count, capacity);
  return {std::move(rows), std::move(copies), std::move(counts)};
}

ToldCopies tell_copies(const at::Tensor& ids_TK, const at::Tensor& scores_TK,
                       const CopyLists& lists, const at::Tensor& copy_slot_C,
                       const MaybeTensor& local_WE, bool with_token) {
  static const auto op = raw_op<decltype(tell_copies_device)>("troupe::tell_copies");
  auto [token, message] = op(ids_TK, scores_TK, lists.row_target_TKS, lists.copy_target_TL,
                             copy_slot_C, local_WE, with_token);
  return {std::move(token), std::move(message)};
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(
      m,
      "list_copies(Tensor ids, Tensor? index, Tensor owners, Tensor replicas, bool slices, "
      "int first, int per, int count, SymInt capacity) -> (Tensor row_target, Tensor copy_target, "
      "Tensor counts)",
      list_copies_device, list_copies_meta);
  define(m,
         "tell_copies(Tensor ids, Tensor scores, Tensor row_target, Tensor copy_target, "
         "Tensor copy_slot, "
         "Tensor? local, bool with_token) -> (Tensor token, Tensor message)",
         tell_copies_device, tell_copies_meta);
}

}  // namespace troupe
