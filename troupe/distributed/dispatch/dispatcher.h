// The dispatcher: moves token rows to where their experts are, and results back. One interface for
// one GPU and many; kernels see no difference, only another source buffer and row_src.
//
// One MoE layer and microbatch, in order:
//   handle = stage(x)                    after the router
//   route(handle, routed)                after top-k: ids, scores, counts
//   send(handle)                         begins to move x
//   rows = rows(handle)                  waits: the source buffer and the plan over it
//   y = experts(rows)                    [S, D]: for each source row the sum of its local rows,
//                                        already multiplied by their scores (X1)
//   send_back(handle, y)                 begins the way back
//   out = combine(handle)                waits: [T, D]
// and in backward
//   stage_grad(handle, grad_out)         the same transfers for grad_out; the plan is reused
//   grad_y = rows_grad(handle)           [S, D]
//   send_back_grad(handle, grad_source, grad_scores)
//   grads = combine_grad(handle)
//   release(handle)                      after dW: the lease of the buffers ends
//
// Each of the four transfers is a call that begins it and one that waits. What is computed between
// them travels for free: the shared expert beside the way to the experts, both ways (SH4), and
// gradients of the experts' weights beside the way back of those of rows (OV5).
//
// All calls enqueue on the current stream and return without waiting for the GPU, unless
// needs_host_counts(). Every rank makes every call in the same order, also with no tokens (H4).
//
// A source row is one token on one rank: the experts add up its local rows (in slot order, f32,
// rounded once), and combine adds the source rows of a token in rank order. That is the `fast` mode
// of expert parallelism; in `exact` mode the dispatcher makes each routed row a source slot of its
// own (K = 1), so y comes back row by row and combine adds in slot order. The experts do the same
// in both. Canonical order of rows, everywhere: (local expert, source rank, source token, k).
//
// Leases: buffers belong to (layer, microbatch) from stage to release. A handle that is dropped
// without release (inference, an error) ends its lease too.
//
// Autograd lives above: end_dispatch and combine_rows record the nodes whose backward calls the
// _grad half, two each: one begins a transfer, one waits, with what may stand between them in
// between. A dispatcher whose source is x itself needs no nodes, and none are recorded.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "troupe/distributed/params/expert_placement.h"
#include "troupe/ops/moe_ffn/moe_ffn.h"
#include "troupe/ops/support/backward_order.h"

namespace troupe {

// The routing of this rank's T tokens.
struct Routed {
  at::Tensor ids_TK;      // int32 global experts; -1: masked or dropped
  at::Tensor scores_TK;   // f32 (f64 beside f64)
  int64_t alignment = 1;  // each expert's segment is a multiple of this many rows (P3)
  int64_t capacity = 0;   // C6: exactly this many rows for each expert; 0: dropless
  int64_t budget = 0;     // C7: most rows this rank accepts; 0: no limit
};

struct ExpertRows {
  at::Tensor source_SD;  // what the experts read; plan.row_src points into it
  at::Tensor scores_SK;  // the score of each slot of a source row
  Plan plan;             // over the local experts; its tensors are on the device
  at::Tensor lost = {};  // C7: number of rows over the budget, int64 scalar; undefined: no budget
  // In backward, while the gradients of the rows travel (FfnOptions::weights_order); absent: they
  // do not.
  std::optional<BackwardOrder> beside_grads = {};
};

class Lease {
 public:
  virtual ~Lease() = default;
};
using Handle = std::shared_ptr<Lease>;

struct DispatchGradients {
  at::Tensor x_TD;
  at::Tensor scores_TK;
};

class Dispatcher {
 public:
  virtual ~Dispatcher() = default;

  virtual Handle stage(const at::Tensor& x_TD) = 0;
  virtual void route(const Handle& handle, const Routed& routed) = 0;
  virtual void send(const Handle& handle) = 0;
  virtual ExpertRows rows(const Handle& handle) = 0;
  virtual void send_back(const Handle& handle, const at::Tensor& y_SD) = 0;
  virtual at::Tensor combine(const Handle& handle) = 0;

  virtual void stage_grad(const Handle& handle, const at::Tensor& grad_out_TD) = 0;
  virtual at::Tensor rows_grad(const Handle& handle) = 0;
  // A gradient that is not needed may be undefined; its result is undefined then.
  virtual void send_back_grad(const Handle& handle, const at::Tensor& grad_source_SD,
                              const at::Tensor& grad_scores_SK) = 0;
  virtual DispatchGradients combine_grad(const Handle& handle) = 0;
  virtual void release(const Handle& handle) = 0;

  // Whether the host waits for row counts in each call: such a call cannot be captured in a graph.
  virtual bool needs_host_counts() const = 0;
  virtual const ExpertPlacement& placement() const = 0;
  // Switches to a new placement. Call on every rank, between steps, with no lease open. The number
  // of experts on this rank stays the same; the caller moves the weights.
  virtual void place(const ExpertPlacement& placement) = 0;
  virtual int64_t rank() const = 0;
  virtual bool holds_all_experts() const = 0;   // else those of placement().held_by(rank())
  virtual std::string description() const = 0;  // for the log, at start
};

// route() and send().
void begin_dispatch(Dispatcher& dispatcher, const Handle& handle, const Routed& routed);
// rows() with the gradient recorded. The dispatcher must outlive the graph.
ExpertRows end_dispatch(Dispatcher& dispatcher, const Handle& handle, const at::Tensor& x_TD,
                        const at::Tensor& scores_TK);
// send_back() and combine() with the gradient recorded. In backward the gradient of y is waited for
// behind what was recorded since `order`, beside which it travels; absent: at once.
at::Tensor combine_rows(Dispatcher& dispatcher, const Handle& handle, const at::Tensor& y_SD,
                        std::optional<BackwardOrder> order = {});

}  // namespace troupe
