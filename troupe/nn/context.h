// What a forward pass is told beside its input. Passed down; nothing is global.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace troupe {

// Adds a tensor up over some ranks; the result is on all of them. Absent: this rank alone.
using SumOver = std::function<at::Tensor(const at::Tensor&)>;

// The rows of all ranks of a group, in rank order, and where this rank's own begin among them.
// Ranks may have different numbers of rows, also none.
struct RowsOfGroup {
  at::Tensor rows;
  int64_t first = 0;
};
using RowsOver = std::function<RowsOfGroup(const at::Tensor&)>;

struct Context {
  bool training = false;
  // False in the first pass of a block that is computed again in backward: that pass neither counts
  // nor records losses (rule G7). Noise and dropping are functions of the keys below, so both
  // passes have the same.
  bool owns_backward = true;
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t layer = 0;         // of the whole model: keys noise and tables
  int64_t first_token = 0;   // global index, within the step, of this rank's token 0
  SumOver group_sum = {};    // over G, the ranks that share this microbatch
  SumOver all_sum = {};      // over all ranks with tokens: G and the data replicas
  RowsOver group_rows = {};  // the rows of all of G (nn/group_rows.h)
  int64_t replicas = 1;      // D, data replicas
  bool budgeted = true;      // false: a step that is done again because rows had no room (C7)

  bool records() const { return training && owns_backward; }
};

// What is known of the T tokens beside x. Undefined tensors: all valid; no ids; no replay.
struct Tokens {
  at::Tensor valid_T = {};    // bool, true: a real token (rule G3)
  at::Tensor ids_T = {};      // integers: the vocabulary's; table routing reads them (R14)
  at::Tensor replay_TK = {};  // int32: choices to take instead of the router's own (R15)
  int64_t sequences = 1;  // the T tokens are this many sequences of equal length, one after another
};

inline at::Tensor summed(const SumOver& sum, const at::Tensor& x) {
  return sum ? sum(x) : x;
}

}  // namespace troupe
