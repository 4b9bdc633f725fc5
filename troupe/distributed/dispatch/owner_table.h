// A placement as tensors: where each slot's row goes, and what its expert is called there.
#pragma once

#include <ATen/core/Tensor.h>

#include "troupe/distributed/params/placement.h"

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
  // ids [W, T, K] of all ranks' tokens: which of `rank`'s experts, int32; -1: the row goes
  // elsewhere.
  at::Tensor held_ids(const at::Tensor& ids_WTK, int64_t rank);

  struct Tensors {
    at::Tensor owners_EM;   // int64; M the most owners, repeated where an expert has fewer
    at::Tensor replicas_E;  // int64
    at::Tensor local_WE;    // int32: which of that rank's experts; -1: not there
  };
  const Tensors& on(const at::Device& device);
  int64_t slices() const { return slices_; }

 private:
  int64_t ranks_, experts_, slices_;
  Tensors tensors_;
};

}  // namespace troupe
