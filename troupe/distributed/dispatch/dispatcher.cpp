#include "troupe/distributed/dispatch/dispatcher.h"

#include <ATen/core/grad_mode.h>

#include "troupe/ops/support/autograd.h"

namespace troupe {

ExpertRows dispatch_rows(Dispatcher& dispatcher, const Handle& handle, const at::Tensor& x_TD,
                         const Routed& routed) {
  ExpertRows rows;
  {
    const at::NoGradGuard no_grad;
    dispatcher.route(handle, routed);
    rows = dispatcher.rows(handle);
  }
  if (rows.source_SD.is_same(x_TD) && rows.scores_SK.is_same(routed.scores_TK)) return rows;
  record({.name = "dispatch",
          .inputs = {x_TD, routed.scores_TK},
          .outputs = {rows.source_SD, rows.scores_SK},
          .saved = {},
          .backward = [&dispatcher, handle](const Gradients& g) -> TensorList {
            const DispatchGradients grads =
                dispatcher.combine_grad(handle, g.needs[0] ? g.outputs[0] : at::Tensor(),
                                        g.needs[1] ? g.outputs[1] : at::Tensor());
            dispatcher.release(handle);
            return {grads.x_TD, grads.scores_TK};
          }});
  return rows;
}

at::Tensor combine_rows(Dispatcher& dispatcher, const Handle& handle, const at::Tensor& y_SD) {
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    out = dispatcher.combine(handle, y_SD);
  }
  if (out.is_same(y_SD)) return y_SD;
  record({.name = "combine",
          .inputs = {y_SD},
          .outputs = {out},
          .saved = {},
          .backward = [&dispatcher, handle](const Gradients& g) -> TensorList {
            dispatcher.stage_grad(handle, g.outputs[0]);
            return {dispatcher.rows_grad(handle)};
          }});
  return out;
}

}  // namespace troupe
