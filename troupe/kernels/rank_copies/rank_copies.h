// What a rank sends under expert parallelism, out of the experts that its tokens chose.
//
// A copy is one token for one target, however many of its routed rows go there; a target is a rank,
// or a node of them. Expert e is on the ranks owners[e]: whole on one of them, or cut into slices
// (hidden sharding), one on each.
//
//   owner(t, k, s)      = owners[e][s] of slices; else owners[e][index[t] mod replicas[e]], s = 0;
//                         e = ids[t, k], and an id outside [0, E) has none
//   row_target[t, k, s] = (owner - first) / per where that is in [0, W), else -1
//   copy_target[t]      = the targets of t, each once, rising; then -1
//   counts[w]           = its copies, its rows, and the capacity that the caller names
//
// kernels/routing_plan of copy_target, with W for experts, orders copies (target, token); of
// row_target it orders rows (target, token, k). tell_copies writes what the receiver needs of each
// copy c, whose slot of copy_target that plan's row_slot names:
//
//   token[c] = t
//   message[c]  = what expert ids[t, k] is called at the target where its row goes there, else -1, for
//              each k; the bits of t's scores; and `with_token`, t
//
// Copies without a slot (-1) have token 0 and a line of zeros. Integers alone, so every path has
// the same bits. Any number of tokens, also 0. All outputs are overwritten whole.
#pragma once

#include <algorithm>
#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"

namespace troupe {

struct ListCopies {
  int64_t tokens = 0, choices = 0, experts = 0;  // T, K, E
  int64_t owners_each = 1;                       // M: columns of owners
  bool slices = false;                           // S = M, else 1
  int64_t first = 0, per = 1, targets = 0;       // W
  int64_t capacity = 0;
  const int32_t* ids = nullptr;       // [T, K]
  const int64_t* index = nullptr;     // [T], at least 0; null: 0, 1, ..
  const int64_t* owners = nullptr;    // [E, M]
  const int64_t* replicas = nullptr;  // [E], in [1, M]
  int32_t* row_target = nullptr;      // [T, K, S]   out
  int32_t* copy_target = nullptr;     // [T, width]  out
  int32_t* counts = nullptr;          // [W, 3]      out

  int64_t parts() const { return slices ? owners_each : 1; }
  int64_t width() const { return std::min(targets, choices * parts()); }
};

struct TellCopies {
  int64_t tokens = 0, choices = 0, parts = 1, experts = 0, width = 0;  // of ListCopies
  int64_t copies = 0;                                                  // C
  int64_t words = 0;                                                   // of 4 bytes of scores
  bool with_token = false;
  const int32_t* ids = nullptr;          // [T, K]
  const int32_t* scores = nullptr;       // [T, words]
  const int32_t* row_target = nullptr;   // [T, K, S]
  const int32_t* copy_target = nullptr;  // [T, width]
  const int32_t* copy_slot = nullptr;    // [C]  of copy_target, or -1
  const int32_t* local = nullptr;        // [W, E]  each target's names; null: ids as they are
  int64_t* token = nullptr;              // [C]     out
  int32_t* message = nullptr;            // [C, columns]  out

  int64_t columns() const { return choices + words + (with_token ? 1 : 0); }
};

void validate(const ListCopies& args);
void validate(const TellCopies& args);
int64_t bytes_moved(const ListCopies& args);
int64_t bytes_moved(const TellCopies& args);

void list_copies_ref(const ListCopies& args);
void list_copies_cpu(const ListCopies& args, const Pool& pool);
void list_copies_cuda(const ListCopies& args, cudaStream_t stream);

void tell_copies_ref(const TellCopies& args);
void tell_copies_cpu(const TellCopies& args, const Pool& pool);
void tell_copies_cuda(const TellCopies& args, cudaStream_t stream);

}  // namespace troupe
