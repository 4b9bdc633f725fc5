// A placement as tensors: where each slot's row goes, and what its expert is called there.
#pragma once

#include <ATen/core/Tensor.h>

#include "troupe/dist/placement.h"

namespace troupe {

class OwnerTable {
 public:
  explicit OwnerTable(const Placement& placement);

  // ids int32 [T, K] of a rank's tokens; -1, or any id outside [0, E), goes nowhere. `index` [T]:
  // which of their own rank's tokens they are; undefined: 0, 1, ..
  at::Tensor sent(const at::Tensor& ids_TK, const at::Tensor& index_T = {});  // bool [W, T, K]
  // Replicas chosen by the token's index, and no slices: the one rank of each slot, int64; that of
  // expert 0 where a slot has no expert.
  at::Tensor owners(const at::Tensor& ids_TK,  // or [W, T, K], of several ranks' tokens
                    const at::Tensor& index_T = {});
  // ids [C, K] of copies for the ranks int64 [C]: which of that rank's experts, int32; -1: not
  // there.
  at::Tensor local_ids(const at::Tensor& ids_CK, const at::Tensor& rank_C);
  // ids [W, T, K] of all ranks' tokens: which of `rank`'s experts, int32; -1: the row goes
  // elsewhere.
  at::Tensor held_ids(const at::Tensor& ids_WTK, int64_t rank);

 private:
  void move_to(const at::Device& device);

  int64_t ranks_, experts_, slices_;
  at::Tensor owners_;      // int64 [E, most owners], repeated where an expert has fewer
  at::Tensor replicas_E_;  // int64
  at::Tensor local_WE_;    // int32
};

}  // namespace troupe
