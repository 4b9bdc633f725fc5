#include "troupe/distributed/group/kv_exchange.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <numeric>

#include "troupe/core/check.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

at::Tensor rows_like(const at::Tensor& x, int64_t rows, at::ScalarType type) {
  return at::empty({rows, x.size(1)}, x.options().dtype(type).requires_grad(false));
}

}  // namespace

KeyRows key_rows(const KeyPlan& plan, const c10::Device& device) {
  const auto on_device = [&](const std::vector<int64_t>& list) {
    return at::tensor(list, at::kLong).to(device);
  };
  return {plan.segments, plan.from_rows, plan.to_rows, on_device(plan.sent), on_device(plan.order)};
}

KvExchange KvExchange::watched(TransferMonitor watch) const {
  KvExchange out = *this;
  out.watch_ = std::move(watch);
  return out;
}

at::Tensor KvExchange::fetch(const at::Tensor& own_TX, const KeyRows& rows) const {
  const at::NoGradGuard no_grad;
  TROUPE_CHECK(std::ssize(rows.from_rows) == ranks(), "a plan for", rows.from_rows.size(),
               "ranks, in a group of", ranks());
  const int64_t came = std::accumulate(rows.from_rows.begin(), rows.from_rows.end(), int64_t{0});
  TROUPE_CHECK(own_TX.dim() == 2 && own_TX.size(0) + came == rows.order.size(0), "keys of",
               own_TX.sizes(), "and", came, "rows that come; the plan has", rows.order.size(0));
  const at::Tensor own = own_TX.detach();
  const at::Tensor other = rows_like(own, came, own.scalar_type());
  if (!alone()) {
    const auto scope = watch_.begin(Phase::kKeys);
    group_->all_to_all(other, own.index_select(0, rows.sent), rows.from_rows, rows.to_rows).wait();
  }
  return at::cat({own, other}).index_select(0, rows.order);
}

at::Tensor KvExchange::bring_home(const at::Tensor& grad_PX, int64_t own,
                                  const KeyRows& rows) const {
  const at::NoGradGuard no_grad;
  const at::ScalarType type = grad_PX.scalar_type();
  const at::Tensor both = rows_like(grad_PX, grad_PX.size(0), type);
  both.index_copy_(0, rows.order, grad_PX);  // each row once
  at::Tensor mine = both.narrow(0, 0, own);
  if (alone()) return mine;
  const at::Tensor back = rows_like(grad_PX, rows.sent.size(0), type);
  {
    const auto scope = watch_.begin(Phase::kKeys);
    group_->all_to_all(back, both.narrow(0, own, both.size(0) - own), rows.to_rows, rows.from_rows)
        .wait();
  }
  const at::ScalarType wide = wide_type(grad_PX);
  const at::Tensor sum = at::zeros({own, grad_PX.size(1)}, mine.options().dtype(wide));
  int64_t first = 0;
  for (int64_t r = 0; r < ranks(); ++r) {
    const int64_t n = rows.to_rows[static_cast<size_t>(r)];
    if (r == rank()) sum.add_(mine);
    if (n == 0) continue;
    // A rank gets a token's row once: no element is added to twice in a call.
    sum.index_add_(0, rows.sent.narrow(0, first, n), back.narrow(0, first, n).to(wide));
    first += n;
  }
  return sum.to(type);
}

at::Tensor KvExchange::fetched(const at::Tensor& own_TX,
                               const std::shared_ptr<const KeyRows>& rows) const {
  const at::Tensor out = fetch(own_TX, *rows);
  record({.name = "fetched_keys",
          .inputs = {own_TX},
          .outputs = {out},
          .saved = {own_TX},
          .backward = [exchange = *this, rows, own = own_TX.size(0)](const Gradients& g)
              -> TensorList { return {exchange.bring_home(g.outputs[0], own, *rows)}; },
          .again = [exchange = *this,
                    rows](const TensorList& saved) { return exchange.fetch(saved[0], *rows); }});
  return out;
}

}  // namespace troupe
