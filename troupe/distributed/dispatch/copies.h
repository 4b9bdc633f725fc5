// What a rank sends under expert parallelism, and how the returned rows are summed.
//
// A copy is one token for one target, a rank or a node of them, however many of its experts live
// there (kernels/rank_copies). Copies are ordered (target, token), their routed rows (target,
// token, k), on both sides of the wire: the receiver's source rows are then (source rank, token),
// the canonical order.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "troupe/distributed/dispatch/owner_table.h"
#include "troupe/ops/rank_copies.h"
#include "troupe/ops/support/plan.h"

namespace troupe {

// The columns of the counts that ranks exchange.
enum CountColumn : int64_t { kCopies, kRows, kCapacity, kCountColumns };

// Target i stands for the ranks first + i per .. first + (i + 1) per - 1.
struct Targets {
  int64_t first = 0, per = 1, count = 0;
};

// How a copy's routing is sent: with expert ids local to the receiver, or, for a rank that forwards
// the copy, with global ids and the token's index.
enum class RoutingFormat : uint8_t { kLocalIds, kIdsAndToken };

class Copies {
 public:
  Copies() = default;
  // Copies of the tokens with these ids [T, K]. `index` [T]: their numbers on their own ranks;
  // undefined: 0, 1, ..
  Copies(OwnerTable& table, const at::Tensor& ids_TK, const Targets& to, int64_t capacity = 0,
         const at::Tensor& index_T = {});

  // int32 [count, kCountColumns]: what each target gets, and this rank's capacity (C6).
  const at::Tensor& counts() const { return lists_.counts_W3; }
  // int32 [C, ..]: ids and scores of all copies, to be sent. Sized for the most copies there may
  // be, padded with token 0, until trim() sets their number.
  at::Tensor pack_routing(const at::Tensor& scores_TK, RoutingFormat as);
  void trim(int64_t copies);
  const at::Tensor& tokens() const {
    return token_C_;
  }  // of the copies, int64; after pack_routing()

  // For ops/combine over returned copies [C, ..]: a token's, in the targets' order.
  Plan sum_of_copies() const { return plan_; }
  // Over returned rows [R, ..]: a token's, in slot order (of slices: in rank order).
  Plan sum_of_rows(int64_t rows) const;
  // Over returned rows [R, 1]: those of a slot, [T K]: one, or one of each slice.
  Plan sum_of_slots(int64_t rows) const;

 private:
  Targets to_;
  at::Tensor ids_TK_, local_WE_;
  CopyLists lists_;
  Plan plan_;  // of copies by target
  at::Tensor token_C_;
};

// The routing received with the copies.
struct CopyRouting {
  at::Tensor ids_CK, scores_CK;
};
CopyRouting read_routing(const at::Tensor& packed, int64_t choices, at::ScalarType score_type);
// Each routed row of the copies by itself, K = 1: `rows` of them, and the copy of each, int64.
CopyRouting one_row_each(const CopyRouting& copies, int64_t rows, at::Tensor& copy_R);

}  // namespace troupe
