#include "troupe/distributed/group/token_edge.h"

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

TokenEdge::TokenEdge(std::shared_ptr<RankGroup> group)
    : group_(std::move(group)), rank_(group_->rank()), ranks_(group_->size()) {
  if (ranks_ == 1) rank_ = 0;
}

TokenEdge TokenEdge::of_sizes(int64_t ranks) {
  TokenEdge out;
  out.ranks_ = ranks;
  return out;
}

TokenEdge TokenEdge::watched(EdgeWatch watch) const {
  TokenEdge out = *this;
  out.watch_ = std::move(watch);
  return out;
}

RankGroup& TokenEdge::group() const {
  TROUPE_CHECK(group_->size() == ranks_, "an edge of sizes alone sends nothing");
  return *group_;
}

at::Tensor TokenEdge::own_rows(const at::Tensor& x) const {
  if (alone() || !x.defined()) return x;
  const TokenRange range = own(x.size(0));
  return x.narrow(0, range.from, range.count);
}

at::Tensor TokenEdge::all_of(const at::Tensor& x) const {
  const at::NoGradGuard no_grad;
  if (alone()) return x.detach().unsqueeze(0);
  RankGroup& ranks = group();
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.insert(sizes.begin(), ranks_);
  const at::Tensor out = at::empty(sizes, x.options().requires_grad(false));
  // Flat: Gloo wants each part in the sizes of what is gathered. Of no elements on all: no call.
  if (x.numel() > 0) {
    const auto scope = watch_.begin(Phase::kTensor);
    ranks.gather({out.view({-1})}, {x.detach().contiguous().view({-1})}).wait();
  }
  return out;
}

at::Tensor TokenEdge::gather(const at::Tensor& own_t, int64_t tokens) const {
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

at::Tensor TokenEdge::scatter(const at::Tensor& part_T) const {
  if (alone()) return part_T;
  Scattering under_way = begin_scatter(part_T);
  return end_scatter(under_way);
}

TokenEdge::Scattering TokenEdge::begin_scatter(const at::Tensor& part_T) const {
  const at::NoGradGuard no_grad;
  RankGroup& ranks = group();
  const int64_t tokens = part_T.size(0), count = own(tokens).count;
  std::vector<int64_t> to_rows, from_rows(static_cast<size_t>(ranks_), count);
  for (int64_t r = 0; r < ranks_; ++r) to_rows.push_back(of_rank(r, tokens).count);
  const at::Tensor sent = part_T.detach().contiguous();
  Scattering out{
      .parts = at::empty(with_rows(part_T, ranks_ * count), part_T.options().requires_grad(false)),
      .count = count};
  const auto scope = watch_.begin(Phase::kTensor);
  out.pending = ranks.exchange(out.parts, sent, from_rows, to_rows);
  return out;
}

at::Tensor TokenEdge::end_scatter(Scattering& under_way) const {
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

at::Tensor TokenEdge::sum(const at::Tensor& x) const {
  const at::NoGradGuard no_grad;
  if (alone()) return x;
  const auto scope = watch_.begin(Phase::kTensor);
  return group().summed(x.contiguous());
}

GatheredTokens TokenEdge::gathered(const at::Tensor& own_t, int64_t tokens) const {
  if (alone()) return {own_t};
  const at::Tensor out = gather(own_t, tokens);
  if (!wants_grad({own_t})) return {out};
  const at::Tensor tie = at::empty({0}, out.options().requires_grad(false));
  const auto under_way = std::make_shared<Scattering>();
  record({.name = "gathered_arrival",
          .inputs = {own_t},
          .outputs = {tie},
          .saved = {},
          .backward = [edge = *this, under_way](const Gradients&) -> TensorList {
            return {edge.end_scatter(*under_way)};
          }});
  const BackwardOrder beside = take_backward_order();
  record({.name = "gathered",
          .inputs = {tie},
          .outputs = {out},
          .saved = {own_t},
          .backward = [edge = *this, under_way](const Gradients& g) -> TensorList {
            *under_way = edge.begin_scatter(g.outputs[0]);
            return {at::Tensor()};
          },
          .again = [edge = *this,
                    tokens](const TensorList& saved) { return edge.gather(saved[0], tokens); }});
  return {out, beside};
}

at::Tensor TokenEdge::scattered(const at::Tensor& part_T) const {
  if (alone()) return part_T;
  const at::Tensor out = scatter(part_T);
  record({.name = "scattered",
          .inputs = {part_T},
          .outputs = {out},
          .saved = {},
          .backward = [edge = *this, tokens = part_T.size(0)](const Gradients& g) -> TensorList {
            return {edge.gather(g.outputs[0], tokens)};
          }});
  return out;
}

at::Tensor TokenEdge::summed(const at::Tensor& x) const {
  if (alone()) return x;
  const at::Tensor out = sum(x.detach());
  record({.name = "summed",
          .inputs = {x},
          .outputs = {out},
          .saved = {},
          .backward = [edge = *this](const Gradients& g) -> TensorList {
            return {edge.sum(g.outputs[0])};
          }});
  return out;
}

}  // namespace troupe
