// Tokens cut over the ranks of a group, and back: what stands around a product whose weights are
// cut over the same ranks (sequence parallelism; rules T1 and T8).
//
//   own(T)              rank r has tokens [r T / ranks, (r + 1) T / ranks): any T, also fewer
//                       than ranks
//   all_gather(x)       [t, X] of each rank to [T, X] on all, in rank order; backward is
//                       reduce_scatter()
//   reduce_scatter(x)   [T, X] on each rank, parts of a sum, to the sum's own rows [t, X]: parts
//                       added in rank order in f32 (f64 for f64) and rounded once; backward is
//                       all_gather()
//   all_reduce(x)       the sum over the ranks, on all; backward is all_reduce()
//
// A group of one records and sends nothing: x comes back. All ranks make the same calls, also with
// no tokens of their own. What all_gather() gives is not kept for backward by operators of this
// library (ops/support/autograd.h): the first backward that reads it gathers it again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "troupe/distributed/group/process_group.h"
#include "troupe/distributed/group/transfer_monitor.h"
#include "troupe/ops/support/backward_order.h"

namespace troupe {

struct TokenRange {
  int64_t from = 0, count = 0;
};

// What comes of all ranks. Its gradients begin to go home, then what is recorded with `beside` is
// computed, such as gradients of the weights that read it, and then they are waited for (T14).
// Absent: nothing travels.
struct GatheredTokens {
  at::Tensor x_T;
  std::optional<BackwardOrder> beside = {};
};

// x with rows of `fill` behind it, `rows` in all, without its graph.
at::Tensor padded_rows(const at::Tensor& x, int64_t rows, double fill = 0);

class TokenSharding {
 public:
  TokenSharding() : TokenSharding(std::make_shared<ProcessGroup>()) {}
  explicit TokenSharding(std::shared_ptr<ProcessGroup> group);
  // Rank 0 of `ranks` that are not there: for sizes alone. Nothing can be sent.
  static TokenSharding of_sizes(int64_t ranks);
  TokenSharding watched(
      TransferMonitor watch) const;  // the same, and its transfers are Phase::kTensor

  int64_t ranks() const { return ranks_; }
  int64_t rank() const { return rank_; }
  bool alone() const { return ranks_ == 1; }

  TokenRange own(int64_t tokens) const { return of_rank(rank_, tokens); }
  TokenRange of_rank(int64_t rank, int64_t tokens) const {
    const int64_t from = rank * tokens / ranks_;
    return {from, (rank + 1) * tokens / ranks_ - from};
  }
  at::Tensor own_rows(const at::Tensor& x_T) const;  // a view; undefined stays so

  // With gradients. `tokens` is T.
  GatheredTokens all_gather(const at::Tensor& own_t, int64_t tokens) const;
  at::Tensor reduce_scatter(const at::Tensor& part_T) const;
  at::Tensor all_reduce(const at::Tensor& x) const;

  // Without.
  at::Tensor all_gather_no_grad(const at::Tensor& own_t, int64_t tokens) const;
  at::Tensor reduce_scatter_no_grad(const at::Tensor& part_T) const;
  struct PendingReduceScatter {  // on its way
    at::Tensor parts;            // [ranks count, X]
    int64_t count = 0;
    Pending pending = {};
  };
  PendingReduceScatter begin_reduce_scatter(const at::Tensor& part_T) const;
  at::Tensor end_reduce_scatter(PendingReduceScatter& under_way) const;
  at::Tensor all_reduce_no_grad(const at::Tensor& x) const;
  // x [n, ..] of every rank, n the same on all: [ranks, n, ..].
  at::Tensor all_of(const at::Tensor& x) const;

 private:
  ProcessGroup& group() const;  // to send by

  std::shared_ptr<ProcessGroup> group_;
  int64_t rank_, ranks_;
  TransferMonitor watch_ = {};
};

}  // namespace troupe
