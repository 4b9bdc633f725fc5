// The rows of one MoE layer and microbatch on their ways: four transfers, of which Dispatcher::send
// begins the first. Each has a call that begins it and one that waits, and the calls come in the
// order in which they stand here; a forward without gradients ends after receive_results().
//
//   dispatcher.send(x, routed)      receive_rows()             x [T, D] to the experts: source [S, D]
//   send_results(y)                 receive_results()          y [S, D] back: out [T, D]
//   send_grads(grad_out)            receive_grads()            gradients of out, as x went
//   send_row_grads(source, scores)  receive_row_grads()        gradients of the source rows, as y went
//
// No call records gradients (Dispatcher and DispatchedRows do), and none is made twice.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

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
  // The most tokens that a rank of the group sends in this call, the same number on all of them;
  // 0: this rank does not know. Spares some dispatchers to ask; none with a capacity.
  int64_t most = 0;
};

struct ExpertRows {
  at::Tensor source_SD;  // what the experts read; plan.row_src points into it
  at::Tensor scores_SK;  // the score of each slot of a source row
  Plan plan;             // over the local experts; its tensors are on the device
  at::Tensor lost = {};  // C7: number of rows over the budget, int64 scalar; undefined: no budget
  // In backward, while the gradients of the rows travel (FfnOptions::weights_order); absent: they
  // do not.
  std::optional<BackwardOrder> beside_grads = {};
  // Source rows that follow each other, of one rank and so of one microbatch each, with a plan over
  // these: the products of each part are then those of that rank alone (DispatcherOptions::by_source).
  // Empty: nobody asked for them.
  struct Part {
    int64_t rows = 0;
    Plan plan = {};
  };
  std::vector<Part> parts = {};
};

struct DispatchGradients {
  at::Tensor x_TD;
  at::Tensor scores_TK;
};

class RowExchange {
 public:
  virtual ~RowExchange() = default;

  virtual ExpertRows receive_rows() = 0;
  virtual void send_results(const at::Tensor& y_SD) = 0;
  virtual at::Tensor receive_results() = 0;
  virtual void send_grads(const at::Tensor& grad_out_TD) = 0;
  virtual at::Tensor receive_grads() = 0;
  // A gradient that is not needed may be undefined; its result is undefined then.
  virtual void send_row_grads(const at::Tensor& grad_source_SD,
                              const at::Tensor& grad_scores_SK) = 0;
  virtual DispatchGradients receive_row_grads() = 0;
};

// One that calls another: the base of those that add something to some calls.
class ForwardingExchange : public RowExchange {
 public:
  explicit ForwardingExchange(std::unique_ptr<RowExchange> inner) : inner_(std::move(inner)) {}

  ExpertRows receive_rows() override { return inner_->receive_rows(); }
  void send_results(const at::Tensor& y_SD) override { inner_->send_results(y_SD); }
  at::Tensor receive_results() override { return inner_->receive_results(); }
  void send_grads(const at::Tensor& grad_out_TD) override { inner_->send_grads(grad_out_TD); }
  at::Tensor receive_grads() override { return inner_->receive_grads(); }
  void send_row_grads(const at::Tensor& grad_source_SD, const at::Tensor& grad_scores_SK) override {
    inner_->send_row_grads(grad_source_SD, grad_scores_SK);
  }
  DispatchGradients receive_row_grads() override { return inner_->receive_row_grads(); }

 private:
  const std::unique_ptr<RowExchange> inner_;
};

}  // namespace troupe
