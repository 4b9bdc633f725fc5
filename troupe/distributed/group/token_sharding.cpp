#include "troupe/distributed/group/token_sharding.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

std::vector<int64_t> with_rows(const at::Tensor& x, int64_t rows) {
  std::vector<int64_t> out = x.sizes().vec();
  out[0] = rows;
  return out;
}

}  // namespace

at::Tensor padded_rows(const at::Tensor& x, int64_t rows, double fill) {
  if (x.size(0) == rows) return x;
  at::Tensor out = at::full(with_rows(x, rows), fill, x.options().requires_grad(false));
  out.narrow(0, 0, x.size(0)).copy_(x);
  return out;
}

TokenSharding::TokenSharding(std::shared_ptr<ProcessGroup> group)
    : group_(std::move(group)), rank_(group_->rank()), ranks_(group_->size()) {
  if (ranks_ == 1) rank_ = 0;
}

TokenSharding TokenSharding::of_sizes(int64_t ranks) {
  TokenSharding out;
  out.ranks_ = ranks;
  return out;
}

TokenSharding TokenSharding::watched(TransferMonitor watch) const {
  TokenSharding out = *this;
  out.watch_ = std::move(watch);
  return out;
}

ProcessGroup& TokenSharding::group() const {
  TROUPE_CHECK(group_->size() == ranks_, "an edge of sizes alone sends nothing");
  return *group_;
}

at::Tensor TokenSharding::own_rows(const at::Tensor& x) const {
  if (alone() || !x.defined()) return x;
  const TokenRange range = own(x.size(0));
  return x.narrow(0, range.from, range.count);
}

at::Tensor TokenSharding::all_of(const at::Tensor& x) const {
  const at::NoGradGuard no_grad;
  if (alone()) return x.detach().unsqueeze(0);
  ProcessGroup& ranks = group();
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.insert(sizes.begin(), ranks_);
  const at::Tensor out = at::empty(sizes, x.options().requires_grad(false));
  // Flat: Gloo wants each part in the sizes of what is gathered. No rank calls it for no elements.
  if (x.numel() > 0) {
    const auto scope = watch_.begin(Phase::kTensor);
    ranks.all_gather({out.view({-1})}, {x.detach().contiguous().view({-1})}).wait();
  }
  return out;
}

at::Tensor TokenSharding::all_gather_no_grad(const at::Tensor& own_t, int64_t tokens) const {
  const at::NoGradGuard no_grad;
  if (alone()) return own_t;
  const int64_t most = (tokens + ranks_ - 1) / ranks_, count = own(tokens).count;
  TROUPE_CHECK(own_t.size(0) == count, "rank", rank_, "of", ranks_, "has", count, "of", tokens,
               "tokens; it was given", own_t.size(0));
  if (tokens % ranks_ == 0) return all_of(own_t).view(with_rows(own_t, tokens));
  const at::Tensor all = all_of(padded_rows(own_t.detach(), most));
  TensorList parts;
  for (int64_t r = 0; r < ranks_; ++r) {
    parts.push_back(all[r].narrow(0, 0, of_rank(r, tokens).count));
  }
  return at::cat(parts);
}

at::Tensor TokenSharding::reduce_scatter_no_grad(const at::Tensor& part_T) const {
  if (alone()) return part_T;
  PendingReduceScatter under_way = begin_reduce_scatter(part_T);
  return end_reduce_scatter(under_way);
}

TokenSharding::PendingReduceScatter TokenSharding::begin_reduce_scatter(
    const at::Tensor& part_T) const {
  const at::NoGradGuard no_grad;
  ProcessGroup& ranks = group();
  const int64_t tokens = part_T.size(0), count = own(tokens).count;
  std::vector<int64_t> to_rows, from_rows(static_cast<size_t>(ranks_), count);
  for (int64_t r = 0; r < ranks_; ++r) to_rows.push_back(of_rank(r, tokens).count);
  const at::Tensor sent = part_T.detach().contiguous();
  PendingReduceScatter out{
      .parts = at::empty(with_rows(part_T, ranks_ * count), part_T.options().requires_grad(false)),
      .count = count};
  const auto scope = watch_.begin(Phase::kTensor);
  out.pending = ranks.all_to_all(out.parts, sent, from_rows, to_rows);
  return out;
}

at::Tensor TokenSharding::end_reduce_scatter(PendingReduceScatter& under_way) const {
  const at::NoGradGuard no_grad;
  const int64_t count = under_way.count;
  {
    const auto scope = watch_.begin(Phase::kTensor);
    under_way.pending.wait();
  }
  const at::Tensor parts = std::exchange(under_way.parts, {});
  at::Tensor sum = parts.narrow(0, 0, count).to(wide_type(parts), false, /*copy=*/true);
  for (int64_t r = 1; r < ranks_; ++r) sum.add_(parts.narrow(0, r * count, count));
  return sum.to(parts.scalar_type());
}

at::Tensor TokenSharding::all_reduce_no_grad(const at::Tensor& x) const {
  const at::NoGradGuard no_grad;
  if (alone()) return x;
  const auto scope = watch_.begin(Phase::kTensor);
  return group().all_reduced(x.contiguous());
}

GatheredTokens TokenSharding::all_gather(const at::Tensor& own_t, int64_t tokens) const {
  if (alone()) return {own_t};
  const at::Tensor out = all_gather_no_grad(own_t, tokens);
  if (!wants_grad({own_t})) return {out};
  const at::Tensor tie = at::empty({0}, out.options().requires_grad(false));
  const auto under_way = std::make_shared<PendingReduceScatter>();
  record({.name = "gathered_arrival",
          .inputs = {own_t},
          .outputs = {tie},
          .saved = {},
          .backward = [sharding = *this, under_way](const Gradients&) -> TensorList {
            return {sharding.end_reduce_scatter(*under_way)};
          }});
  const BackwardOrder beside = take_backward_order();
  record({.name = "gathered",
          .inputs = {tie},
          .outputs = {out},
          .saved = {own_t},
          .backward = [sharding = *this, under_way](const Gradients& g) -> TensorList {
            *under_way = sharding.begin_reduce_scatter(g.outputs[0]);
            return {at::Tensor()};
          },
          .again =
              [sharding = *this, tokens](const TensorList& saved) {
                return sharding.all_gather_no_grad(saved[0], tokens);
              }});
  return {out, beside};
}

at::Tensor TokenSharding::reduce_scatter(const at::Tensor& part_T) const {
  if (alone()) return part_T;
  const at::Tensor out = reduce_scatter_no_grad(part_T);
  record(
      {.name = "scattered",
       .inputs = {part_T},
       .outputs = {out},
       .saved = {},
       .backward = [sharding = *this, tokens = part_T.size(0)](const Gradients& g) -> TensorList {
         return {sharding.all_gather_no_grad(g.outputs[0], tokens)};
       }});
  return out;
}

at::Tensor TokenSharding::all_reduce(const at::Tensor& x) const {
  if (alone()) return x;
  const at::Tensor out = all_reduce_no_grad(x.detach());
  record({.name = "summed",
          .inputs = {x},
          .outputs = {out},
          .saved = {},
          .backward = [sharding = *this](const Gradients& g) -> TensorList {
            return {sharding.all_reduce_no_grad(g.outputs[0])};
          }});
  return out;
}

}  // namespace troupe
