// A placement as tensors: the rank of each slot's row, and its expert's local id there.
#pragma once

#include <ATen/core/Tensor.h>

#include "troupe/distributed/params/expert_placement.h"

namespace troupe {

class OwnerTable {
 public:
  explicit OwnerTable(const ExpertPlacement& placement);

  // ids int32 [T, K] of a rank's tokens; ids outside [0, E), such as -1, are not sent. `index` [T]:
  // their numbers on their own rank; undefined: 0, 1, ..
  at::Tensor sent(const at::Tensor& ids_TK, const at::Tensor& index_T = {});  // bool [W, T, K]
  // Without slices: the one rank of each slot, int64; a replica is chosen by the token's index. The
  // rank of expert 0 if a slot has no expert.
  at::Tensor owners(const at::Tensor& ids_TK,  // or [W, T, K], of several ranks' tokens
                    const at::Tensor& index_T = {});
  // ids [W, T, K] of all ranks' tokens: local ids on `rank`, int32; -1: the row goes to another
  // rank.
  at::Tensor held_ids(const at::Tensor& ids_WTK, int64_t rank);

  struct Tensors {
    at::Tensor owners_EM;   // int64; M: the most owners; an expert with fewer repeats them
    at::Tensor replicas_E;  // int64
    at::Tensor local_WE;    // int32: local id on that rank; -1: not there
  };
  const Tensors& on(const at::Device& device);
  int64_t slices() const { return slices_; }

 private:
  int64_t ranks_, experts_, slices_;
  Tensors tensors_;
};

}  // namespace troupe
