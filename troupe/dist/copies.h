// What a rank sends under expert parallelism, and how the results come together again.
//
// A copy is one token for one rank, however many of its experts live there. Copies are ordered
// (rank, token), their routed rows (rank, token, k), on both sides of the wire: the receiver's
// source rows are then (source rank, token), the canonical order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "troupe/dist/owner_table.h"
#include "troupe/ops/plan.h"

namespace troupe {

// The columns of the counts that ranks exchange.
enum CountColumn : int64_t { kCopies, kRows, kCapacity, kCountColumns };

class Copies {
 public:
  Copies() = default;
  // sent bool [W, T, K]: the slots whose rows go to each rank.
  Copies(const at::Tensor& sent_WTK, int64_t slices);

  // int32 [W, kCountColumns]: what each rank gets, and this rank's capacity (C6).
  at::Tensor counts(int64_t capacity) const;
  // The tokens of all copies, int64. `copies`: how many there are, where the host knows it; else
  // the list is as long as any can be, and what lies past its end goes nowhere, until trim().
  void list(int64_t copies = -1);
  void trim(int64_t copies);
  const at::Tensor& tokens() const { return token_C_; }
  // int32 [C, K + K or 2 K]: local experts, -1 where a slot's row is not for that rank, and the
  // bits of the scores. The first of these ranks is the table's `first_rank`.
  at::Tensor routing(OwnerTable& table, const at::Tensor& ids_TK, const at::Tensor& scores_TK,
                     int64_t first_rank = 0) const;
  // The same with the ids as they are: what somebody else will send on.
  at::Tensor routing(const at::Tensor& ids_TK, const at::Tensor& scores_TK) const;

  // For ops/combine over returned copies [C, ..]: a token's, in rank order.
  Plan sum_of_copies(int64_t copies) const;
  // Over returned rows [R, ..]: a token's, in slot order (of slices: in rank order).
  Plan sum_of_rows(int64_t rows) const;
  // Over returned rows [R, 1]: those of a slot, [T K]: one, or one of each slice.
  Plan sum_of_slots(int64_t rows) const;

 private:
  at::Tensor told(const at::Tensor& ids_CK, const at::Tensor& scores_TK) const;
  at::Tensor sent_WTK_, any_WT_;  // bool
  at::Tensor copy_C_, token_C_;
  int64_t slices_ = 1;
};

// What came with the copies.
struct CopyRouting {
  at::Tensor ids_CK, scores_CK;
};
CopyRouting read_routing(const at::Tensor& routing, int64_t choices, at::ScalarType score_type);
// Each routed row of the copies by itself, K = 1: `rows` of them, and the copy of each, int64.
CopyRouting one_row_each(const CopyRouting& copies, int64_t rows, at::Tensor& copy_R);

}  // namespace troupe
