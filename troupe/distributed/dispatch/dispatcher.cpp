#include "troupe/distributed/dispatch/dispatcher.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "troupe/ops/support/autograd.h"

namespace troupe {
namespace {

// Ties two records, of which the one is begun and the other waited for; it has no elements.
at::Tensor tie_like(const at::Tensor& x) {
  return at::empty({0}, x.options().requires_grad(false));
}

}  // namespace

void begin_dispatch(Dispatcher& dispatcher, const Handle& handle, const Routed& routed) {
  const at::NoGradGuard no_grad;
  dispatcher.route(handle, routed);
  dispatcher.send(handle);
}

ExpertRows end_dispatch(Dispatcher& dispatcher, const Handle& handle, const at::Tensor& x_TD,
                        const at::Tensor& scores_TK) {
  ExpertRows rows;
  {
    const at::NoGradGuard no_grad;
    rows = dispatcher.rows(handle);
  }
  if (rows.source_SD.is_same(x_TD) && rows.scores_SK.is_same(scores_TK)) return rows;
  if (!wants_grad({x_TD, scores_TK})) return rows;
  const at::Tensor tie = tie_like(x_TD);
  record({.name = "dispatch_arrival",
          .inputs = {x_TD, scores_TK},
          .outputs = {tie},
          .saved = {},
          .backward = [&dispatcher, handle](const Gradients&) -> TensorList {
            const DispatchGradients grads = dispatcher.combine_grad(handle);
            dispatcher.release(handle);
            return {grads.x_TD, grads.scores_TK};
          }});
  rows.beside_grads = take_backward_order();
  record({.name = "dispatch",
          .inputs = {tie},
          .outputs = {rows.source_SD, rows.scores_SK},
          .saved = {},
          .backward = [&dispatcher, handle, x = x_TD.requires_grad(),
                       scores = scores_TK.requires_grad()](const Gradients& g) -> TensorList {
            dispatcher.send_back_grad(handle, x ? g.outputs[0] : at::Tensor(),
                                      scores ? g.outputs[1] : at::Tensor());
            return {at::Tensor()};
          }});
  return rows;
}

at::Tensor combine_rows(Dispatcher& dispatcher, const Handle& handle, const at::Tensor& y_SD,
                        std::optional<BackwardOrder> order) {
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    dispatcher.send_back(handle, y_SD);
    out = dispatcher.combine(handle);
  }
  if (out.is_same(y_SD)) return y_SD;
  if (!wants_grad({y_SD})) return out;
  const at::Tensor tie = tie_like(y_SD);
  record({.name = "combine_arrival",
          .inputs = {y_SD},
          .outputs = {tie},
          .saved = {},
          .backward = [&dispatcher, handle](const Gradients&) -> TensorList {
            return {dispatcher.rows_grad(handle)};
          }},
         order ? *order : take_backward_order());
  record({.name = "combine",
          .inputs = {tie},
          .outputs = {out},
          .saved = {},
          .backward = [&dispatcher, handle](const Gradients& g) -> TensorList {
            dispatcher.stage_grad(handle, g.outputs[0]);
            return {at::Tensor()};
          }});
  return out;
}

}  // namespace troupe
