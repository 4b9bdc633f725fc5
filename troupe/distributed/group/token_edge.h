// Tokens cut over the ranks of a group, and back: what stands around a product whose weights are
// cut over the same ranks (sequence parallelism; rules T1 and T8).
//
//   own(T)         rank r has tokens [r T / ranks, (r + 1) T / ranks): any T, also fewer than ranks
//   gathered(x)    [t, X] of each rank to [T, X] on all, in rank order; backward is scattered()
//   scattered(x)   [T, X] on each rank, parts of a sum, to the sum's own rows [t, X]: parts added
//                  in rank order in f32 (f64 for f64) and rounded once; backward is gathered()
//   summed(x)      the sum over the ranks, on all; backward is summed()
//
// A group of one records and sends nothing: x comes back. All ranks make the same calls, also with
// no tokens of their own. What gathered() gives is not kept for backward by operators of this
// library (ops/support/autograd.h): the first backward that reads it gathers it again.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "troupe/distributed/group/edge_watch.h"
#include "troupe/distributed/group/group.h"
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

class TokenEdge {
 public:
  TokenEdge() : TokenEdge(std::make_shared<RankGroup>()) {}
  explicit TokenEdge(std::shared_ptr<RankGroup> group);
  // Rank 0 of `ranks` that are not there: for sizes alone. Nothing can be sent.
  static TokenEdge of_sizes(int64_t ranks);
  TokenEdge watched(EdgeWatch watch) const;  // the same, and its transfers are Phase::kTensor

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
  GatheredTokens gathered(const at::Tensor& own_t, int64_t tokens) const;
  at::Tensor scattered(const at::Tensor& part_T) const;
  at::Tensor summed(const at::Tensor& x) const;

  // Without.
  at::Tensor gather(const at::Tensor& own_t, int64_t tokens) const;
  at::Tensor scatter(const at::Tensor& part_T) const;
  struct Scattering {  // on its way
    at::Tensor parts;  // [ranks count, X]
    int64_t count = 0;
    Pending pending = {};
  };
  Scattering begin_scatter(const at::Tensor& part_T) const;
  at::Tensor end_scatter(Scattering& under_way) const;
  at::Tensor sum(const at::Tensor& x) const;
  // x [n, ..] of every rank, n the same on all: [ranks, n, ..].
  at::Tensor all_of(const at::Tensor& x) const;

 private:
  RankGroup& group() const;  // to send by

  std::shared_ptr<RankGroup> group_;
  int64_t rank_, ranks_;
  EdgeWatch watch_ = {};
};

}  // namespace troupe
