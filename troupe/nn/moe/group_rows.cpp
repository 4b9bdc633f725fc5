#include "troupe/nn/moe/group_rows.h"

#include <ATen/ops/ones.h>

#include "troupe/core/check.h"
#include "troupe/ops/support/autograd.h"

namespace troupe {

at::Tensor GroupRows::Own::of(const at::Tensor& all) const {
  return index_T.defined() ? all.index_select(0, index_T) : all.narrow(0, first, count);
}

GroupRows::GroupRows(RoutingScope scope, const Context& context, const Tokens& tokens,
                     const at::Tensor& like)
    : gather_(scope == RoutingScope::kGroup && context.group_rows ? &context.group_rows : nullptr),
      tokens_(like.size(0)) {
  if (tokens.valid_T.defined()) valid_ = tokens.valid_T;
  if (!shared()) return;
  // Another rank may have a mask where this one has none, and all must make the same calls.
  const RowsOfGroup all = (*gather_)(
      valid_ ? *valid_ : at::ones({tokens_}, like.options().dtype(at::kBool).requires_grad(false)));
  TROUPE_CHECK(0 <= all.first && all.first + tokens_ <= all.rows.size(0), "the group has",
               all.rows.size(0), "rows, and this rank's", tokens_, "begin at", all.first);
  TROUPE_CHECK(!all.own_T.defined() || all.own_T.size(0) == tokens_, "the group names",
               all.own_T.numel(), "rows as this rank's", tokens_);
  valid_ = all.rows;
  own_ = {all.first, tokens_, all.own_T};
}

at::Tensor GroupRows::all(const at::Tensor& x) const {
  if (!shared()) return x;
  at::Tensor rows = (*gather_)(x.detach()).rows;
  record({.name = "group_rows",
          .inputs = {x},
          .outputs = {rows},
          .saved = {},
          .backward = [own = own_](const Gradients& g) -> TensorList {
            return {own.of(g.outputs[0])};
          }});
  return rows;
}

at::Tensor GroupRows::own(const at::Tensor& all) const {
  return shared() ? own_.of(all) : all;
}

}  // namespace troupe
