// What a rank sends under expert parallelism: kernels/rank_copies has the rule.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace troupe {

// Where experts are, and which ranks are which target.
struct CopyTargets {
  at::Tensor owners_EM, replicas_E;  // int64
  bool slices = false;               // a row goes to all owners of its expert
  int64_t first = 0, per = 1, count = 0;
};

struct CopyLists {
  at::Tensor row_target_TKS;  // int32
  at::Tensor copy_target_TL;  // int32
  at::Tensor counts_W3;       // int32: copies, rows, capacity
};

// ids int32 [T, K], index int64 [T]. Nothing here waits for the device, nothing has a gradient.
CopyLists list_copies(const at::Tensor& ids_TK, const std::optional<at::Tensor>& index_T,
                      const CopyTargets& targets, int64_t capacity);

struct ToldCopies {
  at::Tensor token_C;  // int64
  at::Tensor told_CX;  // int32: K ids, the bits of the scores, the token's number if asked for
};

// scores [T, K] of a type of 4 or 8 bytes; copy_slot int32 [C]; local int32 [W, E].
ToldCopies tell_copies(const at::Tensor& ids_TK, const at::Tensor& scores_TK,
                       const CopyLists& lists, const at::Tensor& copy_slot_C,
                       const std::optional<at::Tensor>& local_WE, bool with_token);

}  // namespace troupe
