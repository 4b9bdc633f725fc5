#include "troupe/distributed/dispatch/dispatcher.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <utility>

#include "troupe/core/check.h"
#include "troupe/ops/support/autograd.h"

namespace troupe {

struct OpenExchange {
  std::unique_ptr<RowExchange> exchange;

  RowExchange& get() const {
    TROUPE_CHECK(exchange != nullptr, "these rows have gone back: their graph is walked once");
    return *exchange;
  }
};

namespace {

// Ties two records, of which the one is begun and the other waited for; it has no elements.
at::Tensor tie_like(const at::Tensor& x) {
  return at::empty({0}, x.options().requires_grad(false));
}

}  // namespace

InFlight Dispatcher::begin(const at::Tensor& x_TD, const Routed& routed) {
  const at::NoGradGuard no_grad;
  return {x_TD, routed.scores_TK, send(x_TD, routed)};
}

InFlight::InFlight(at::Tensor x_TD, at::Tensor scores_TK, std::unique_ptr<RowExchange> exchange)
    : x_TD_(std::move(x_TD)),
      scores_TK_(std::move(scores_TK)),
      exchange_(std::make_shared<OpenExchange>(OpenExchange{std::move(exchange)})) {}

DispatchedRows InFlight::finish() && {
  TROUPE_CHECK(exchange_ != nullptr, "rows in flight are waited for once");
  DispatchedRows rows;
  rows.exchange = std::move(exchange_);
  const at::Tensor x_TD = std::move(x_TD_), scores_TK = std::move(scores_TK_);
  {
    const at::NoGradGuard no_grad;
    static_cast<ExpertRows&>(rows) = rows.exchange->get().receive_rows();
  }
  if (rows.source_SD.is_same(x_TD) && rows.scores_SK.is_same(scores_TK)) return rows;
  if (!wants_grad({x_TD, scores_TK})) return rows;
  const at::Tensor tie = tie_like(x_TD);
  record({.name = "dispatch_arrival",
          .inputs = {x_TD, scores_TK},
          .outputs = {tie},
          .saved = {},
          .backward = [open = rows.exchange](const Gradients&) -> TensorList {
            const DispatchGradients grads = open->get().receive_row_grads();
            open->exchange = nullptr;
            return {grads.x_TD, grads.scores_TK};
          }});
  rows.beside_grads = take_backward_order();
  record({.name = "dispatch",
          .inputs = {tie},
          .outputs = {rows.source_SD, rows.scores_SK},
          .saved = {},
          .backward = [open = rows.exchange, x = x_TD.requires_grad(),
                       scores = scores_TK.requires_grad()](const Gradients& g) -> TensorList {
            open->get().send_row_grads(x ? g.outputs[0] : at::Tensor(),
                                       scores ? g.outputs[1] : at::Tensor());
            return {at::Tensor()};
          }});
  return rows;
}

at::Tensor DispatchedRows::combine(const at::Tensor& y_SD,
                                   std::optional<BackwardOrder> order) const {
  at::Tensor out;
  {
    const at::NoGradGuard no_grad;
    exchange->get().send_results(y_SD);
    out = exchange->get().receive_results();
  }
  if (out.is_same(y_SD)) return y_SD;
  if (!wants_grad({y_SD})) return out;
  const at::Tensor tie = tie_like(y_SD);
  record({.name = "combine_arrival",
          .inputs = {y_SD},
          .outputs = {tie},
          .saved = {},
          .backward = [open = exchange](const Gradients&) -> TensorList {
            return {open->get().receive_grads()};
          }},
         order ? *order : take_backward_order());
  record({.name = "combine",
          .inputs = {tie},
          .outputs = {out},
          .saved = {},
          .backward = [open = exchange](const Gradients& g) -> TensorList {
            open->get().send_grads(g.outputs[0]);
            return {at::Tensor()};
          }});
  return out;
}

}  // namespace troupe
