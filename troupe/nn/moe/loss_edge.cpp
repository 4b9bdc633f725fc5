#include "troupe/nn/moe/loss_edge.h"

#include <ATen/ops/full.h>

#include "troupe/core/check.h"
#include "troupe/ops/support/autograd.h"

namespace troupe {

at::Tensor with_loss(const at::Tensor& y, const at::Tensor& loss, double weight) {
  TROUPE_CHECK(loss.defined() && loss.numel() == 1, "a loss is a scalar; it has", loss.numel());
  if (!wants_grad({loss})) return y;
  at::Tensor out = y.variable_data();  // the same memory, no view in autograd's sense
  record({.name = "with_loss",
          .inputs = {y, loss},
          .outputs = {out},
          .saved = {},
          .backward = [weight, sizes = loss.sizes().vec(),
                       options = loss.options()](const Gradients& g) -> TensorList {
            return {g.needs[0] ? g.outputs[0] : at::Tensor(),
                    g.needs[1] ? at::full(sizes, weight, options) : at::Tensor()};
          }});
  return out;
}

}  // namespace troupe
