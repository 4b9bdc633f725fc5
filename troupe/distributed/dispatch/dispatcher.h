// The dispatcher: moves token rows to where their experts are, and results back. One interface for
// one GPU and many; kernels see no difference, only another source buffer and row_src.
//
// One MoE layer and microbatch, in order:
//   flying = dispatcher.begin(x, routed)     after top-k: x begins to move
//   rows = std::move(flying).finish()        waits: the source buffer and the plan over it
//   y = experts(rows)                        [S, D]: for each source row the sum of its local rows,
//                                            already multiplied by their scores (X1)
//   out = rows.combine(y)                    [T, D]: moves the results back and waits for them
// Backward goes the same ways by itself: gradients of results to the experts, of rows back.
//
// Between begin and finish whatever is computed travels for free: the shared expert, in forward
// and in backward (SH4); and gradients of the experts' weights beside the way back of those of rows
// (OV5).
//
// A transfer in flight is a value and the only holder of its buffers. A dropped one
// (inference, an error) frees them; in backward they go with the last transfer.
//
// All calls enqueue on the current stream and return without waiting for the GPU, unless
// info().host_reads. Every rank makes every call in the same order, also with no tokens (H4).
//
// A source row is one token on one rank: the experts add up its local rows (in slot order, f32,
// rounded once), and combine adds the source rows of a token in rank order. That is the `fast` mode
// of expert parallelism; in `exact` mode the dispatcher makes each routed row a source slot of its
// own (K = 1), so y comes back row by row and combine adds in slot order. The experts do the same
// in both. Canonical order of rows, everywhere: (local expert, source rank, source token, k).
//
// To add one: row_exchange.h is what it implements, dispatchers.h the list it joins.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troupe/distributed/dispatch/row_exchange.h"
#include "troupe/distributed/params/expert_placement.h"
#include "troupe/ops/support/backward_order.h"

namespace troupe {

// An exchange from begin to the end of its backward: the nodes of its graph share it.
struct OpenExchange;

struct DispatchedRows : ExpertRows {
  // Sends y_SD back and returns [T, D], with the gradient recorded. In backward the gradient of y is
  // waited for behind what was recorded since `order`, beside which it travels; absent: at once.
  at::Tensor combine(const at::Tensor& y_SD, std::optional<BackwardOrder> order = {}) const;

  std::shared_ptr<OpenExchange> exchange;
};

// Rows on their way to the experts.
class InFlight {
 public:
  InFlight(at::Tensor x_TD, at::Tensor scores_TK, std::unique_ptr<RowExchange> exchange);
  // Waits for them. A dispatcher whose source is x itself needs no node, and none is recorded.
  DispatchedRows finish() &&;

 private:
  at::Tensor x_TD_, scores_TK_;
  std::shared_ptr<OpenExchange> exchange_;
};

struct DispatcherInfo {
  std::string description;  // for the log, at start
  // Whether the host waits for row counts in begin(): such a call cannot be captured in a graph.
  bool host_reads = false;
  // The experts of this rank; absent: all are here, whole.
  std::optional<std::vector<int64_t>> held = {};
  int64_t slices = 1, slice = 0;  // of each expert's hidden width (H2)
};

class Dispatcher {
 public:
  virtual ~Dispatcher() = default;

  InFlight begin(const at::Tensor& x_TD, const Routed& routed);
  virtual DispatcherInfo info() const = 0;
  // Switches to a new placement. Call on every rank, between steps. The number of experts on this
  // rank stays the same; the caller moves the weights.
  virtual void place(const ExpertPlacement& placement) = 0;

  // begin() without the gradient: what a dispatcher implements.
  virtual std::unique_ptr<RowExchange> send(const at::Tensor& x_TD, const Routed& routed) = 0;
};

}  // namespace troupe
