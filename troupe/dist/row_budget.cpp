#include "troupe/dist/row_budget.h"

#include <ATen/TensorOperators.h>

namespace troupe {

at::Tensor within_budget(const at::Tensor& ids_SK, int64_t budget, at::Tensor& lost) {
  if (budget == 0) return ids_SK;
  const at::Tensor routed = ids_SK.reshape({-1}).ge(0);
  const at::Tensor over = routed.logical_and(routed.cumsum(0).gt(budget));
  lost = lost.defined() ? lost + over.sum() : over.sum();
  return ids_SK.masked_fill(over.reshape(ids_SK.sizes()), -1);
}

}  // namespace troupe
