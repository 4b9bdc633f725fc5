#include "troupe/nn/group_rows.h"

#include <ATen/ops/ones.h>

#include "troupe/core/check.h"
#include "troupe/ops/support/autograd.h"

namespace troupe {

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
  valid_ = all.rows;
  first_ = all.first;
}

at::Tensor GroupRows::all(const at::Tensor& x) const {
  if (!shared()) return x;
  at::Tensor rows = (*gather_)(x.detach()).rows;
  record({.name = "group_rows",
          .inputs = {x},
          .outputs = {rows},
          .saved = {},
          .backward = [first = first_, n = tokens_](const Gradients& g) -> TensorList {
            return {g.outputs[0].narrow(0, first, n)};
          }});
  return rows;
}

at::Tensor GroupRows::own(const at::Tensor& all) const {
  return shared() ? all.narrow(0, first_, tokens_) : all;
}

}  // namespace troupe
