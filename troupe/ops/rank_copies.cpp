#include "troupe/ops/rank_copies.h"

#include <ATen/ops/empty.h>

#include <array>
#include <limits>
#include <tuple>
#include <vector>

#include "troupe/kernels/rank_copies/rank_copies.h"
#include "troupe/ops/support/arg_check.h"
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

// Of `count` targets the first has rank `first`, each `per` ranks.
struct ListCopiesArgs {
  const at::Tensor& ids;       // [T, K]
  const MaybeTensor& index;    // [T]
  const at::Tensor& owners;    // [E, M]
  const at::Tensor& replicas;  // [E]
  bool slices;
  int64_t first, per, count;
  c10::SymInt capacity;

  static constexpr const char *kName = "list_copies",
                              *kResults = "(Tensor row_target, Tensor copy_target, Tensor counts)";
  static auto visit(auto& a, auto&& f) {
    return f(arg("ids", a.ids, Dims{"TK"}, kIntType), arg("index", a.index, Dims{"T"}, kLongType),
             arg("owners", a.owners, Dims{"EM"}, kLongType),
             arg("replicas", a.replicas, Dims{"E"}, kLongType), arg("slices", a.slices),
             arg("first", a.first), arg("per", a.per), arg("count", a.count),
             arg("capacity", a.capacity));
  }
};

struct TellCopiesArgs {
  const at::Tensor& ids;          // [T, K]
  const at::Tensor& scores;       // [T, K]
  const at::Tensor& row_target;   // [T, K, S] of list_copies
  const at::Tensor& copy_target;  // [T, L] of list_copies
  const at::Tensor& copy_slot;    // [C]
  const MaybeTensor& local;       // [W, E]
  bool with_token;

  static constexpr const char *kName = "tell_copies", *kResults = "(Tensor token, Tensor message)";
  static auto visit(auto& a, auto&& f) {
    return f(arg("ids", a.ids, Dims{"TK"}, kIntType), arg("scores", a.scores, Dims{"TK"}),
             arg("row_target", a.row_target, Dims{"TK*"}, kIntType),
             arg("copy_target", a.copy_target, Dims{"T*"}, kIntType),
             arg("copy_slot", a.copy_slot, Dims{"C"}, kIntType),
             arg("local", a.local, Dims{"**"}, kIntType), arg("with_token", a.with_token));
  }
};

Lists list_copies_meta(const ListCopiesArgs& a) {
  const DimSizes sizes = check_args(a);
  TROUPE_CHECK(a.first >= 0 && a.per > 0 && a.count >= 0, "list_copies: the first rank is", a.first,
               ", ranks a target", a.per, ", targets", a.count);
  const c10::SymInt &T = sizes['T'], &K = sizes['K'];
  const c10::SymInt parts = a.slices ? sizes['M'] : c10::SymInt(1);
  const c10::SymInt width = (K * parts).min(a.count);
  const auto ints = a.ids.options();
  return {at::empty_symint({T, K, parts}, ints), at::empty_symint({T, width}, ints),
          at::empty_symint({a.count, 3}, ints)};
}

Lists list_copies_device(const ListCopiesArgs& a) {
  const Lists out = list_copies_meta(a);
  std::vector<Indices> read;
  if (!a.slices) read.push_back({"list_copies: replicas", a.replicas, 1, a.owners.size(1)});
  if (a.index.has_value()) {
    read.push_back({"list_copies: index", *a.index, 0, std::numeric_limits<int64_t>::max()});
  }
  check_indices(read);
  const at::Tensor ids = a.ids.contiguous();
  const at::Tensor owners = a.owners.contiguous(), replicas = a.replicas.contiguous();
  const MaybeTensor index = a.index.has_value() ? MaybeTensor(a.index->contiguous()) : std::nullopt;
  const ListCopies args{.tokens = ids.size(0),
                        .choices = ids.size(1),
                        .experts = owners.size(0),
                        .owners_each = owners.size(1),
                        .slices = a.slices,
                        .first = a.first,
                        .per = a.per,
                        .targets = a.count,
                        .capacity = a.capacity.guard_int(__FILE__, __LINE__),
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

Told tell_copies_meta(const TellCopiesArgs& a) {
  const DimSizes sizes = check_args(a);
  const c10::SymInt columns = sizes['K'] + words_of(a.scores) + (a.with_token ? 1 : 0);
  const auto ints = a.ids.options();
  return {at::empty_symint({sizes['C']}, ints.dtype(at::kLong)),
          at::empty_symint({sizes['C'], columns}, ints)};
}

Told tell_copies_device(const TellCopiesArgs& a) {
  const Told out = tell_copies_meta(a);
  const int64_t most = a.local.has_value() ? a.local->size(0) : kMostTargets;
  check_indices({{"tell_copies: copy_slot", a.copy_slot, -1, a.copy_target.numel() - 1},
                 {"tell_copies: copy_target", a.copy_target, -1, most - 1}});
  const at::Tensor ids = a.ids.contiguous(), scores = a.scores.contiguous();
  const at::Tensor rows = a.row_target.contiguous(), targets = a.copy_target.contiguous();
  const at::Tensor slots = a.copy_slot.contiguous();
  const MaybeTensor local = a.local.has_value() ? MaybeTensor(a.local->contiguous()) : a.local;
  const TellCopies args{.tokens = ids.size(0),
                        .choices = ids.size(1),
                        .parts = rows.size(2),
                        .experts = local.has_value() ? local->size(1) : 0,
                        .width = targets.size(1),
                        .copies = slots.size(0),
                        .words = words_of(scores).guard_int(__FILE__, __LINE__),
                        .with_token = a.with_token,
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
  static const auto op = raw_op<decltype(list_copies_device)>();
  auto [rows, copies, counts] = op({ids_TK, index_T, to.owners_EM, to.replicas_E, to.slices,
                                    to.first, to.per, to.count, capacity});
  return {std::move(rows), std::move(copies), std::move(counts)};
}

ToldCopies tell_copies(const at::Tensor& ids_TK, const at::Tensor& scores_TK,
                       const CopyLists& lists, const at::Tensor& copy_slot_C,
                       const MaybeTensor& local_WE, bool with_token) {
  static const auto op = raw_op<decltype(tell_copies_device)>();
  auto [token, message] = op({ids_TK, scores_TK, lists.row_target_TKS, lists.copy_target_TL,
                              copy_slot_C, local_WE, with_token});
  return {std::move(token), std::move(message)};
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define<list_copies_device, list_copies_meta>(m);
  define<tell_copies_device, tell_copies_meta>(m);
}

}  // namespace troupe
