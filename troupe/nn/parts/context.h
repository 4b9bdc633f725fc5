// What a forward pass needs beside its input, passed down as an argument; nothing is global.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

namespace troupe {

// All-reduces a tensor over some ranks. Empty: this rank alone.
using SumOver = std::function<at::Tensor(const at::Tensor&)>;

// The rows of all ranks of a group, in the order of the tokens in the batch, and which of them are
// this rank's. Ranks may have different numbers of rows, also none.
struct RowsOfGroup {
  at::Tensor rows;
  int64_t first = 0;      // this rank's rows follow each other from here on;
  at::Tensor own_T = {};  // if defined, int64, they are these instead
};
using RowsOver = std::function<RowsOfGroup(const at::Tensor&)>;

// Sees the output of each module under the name that its parameters begin with, "layers.3.norm1", in
// the order of computation (nn/model/module_outputs.h).
using OutputHook = std::function<void(const std::string& name, const at::Tensor& y)>;

struct Context {
  bool training = false;
  // False in the first pass of a block that is recomputed in backward: that pass neither counts
  // tokens nor records losses (rule G7). Noise and dropout depend only on the keys below, so both
  // passes draw the same.
  bool owns_backward = true;
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t layer = 0;        // number within the whole model: keys noise and tables
  int64_t first_token = 0;  // global index, within the step, of this rank's token 0
  // Global index of each token of this rank, int64 on the device (MF13).
  at::Tensor index_T = {};  // undefined: first_token + t
  SumOver group_sum = {};   // over G, the ranks that share this microbatch
  // Over all ranks with tokens: G and the data replicas. These have other numbers of rows, also
  // none: what is summed has sizes of the model alone.
  SumOver all_sum = {};
  RowsOver group_rows = {};  // the rows of all of G (nn/moe/group_rows.h)
  bool budgeted = true;      // false: a step repeated without the budget, which overflowed (C7)
  // Routed::most of each layer: the most tokens that a rank has in this microbatch; 0: not known.
  int64_t most_tokens = 0;
  const OutputHook* on_output = nullptr;  // null: nothing is called

  bool records() const { return training && owns_backward; }
  void output(const char* name, const at::Tensor& y) const {
    if (on_output != nullptr) (*on_output)(name, y);
  }
};

// Properties of the T tokens of x. Undefined tensors: all valid; no ids; no replay.
struct Tokens {
  at::Tensor valid_T = {};    // bool, true: a real token (rule G3)
  at::Tensor ids_T = {};      // integers: the vocabulary's; table routing reads them (R14)
  at::Tensor replay_TK = {};  // int32: choices to take instead of the router's own (R15)
  int64_t sequences = 1;  // the tokens are this many sequences of equal length, one after another,
  int64_t all = 0;        // so many in all, of which the T here, of this rank, begin at `first`;
  int64_t first = 0;      // 0: these T alone
};

inline at::Tensor summed(const SumOver& sum, const at::Tensor& x) {
  return sum ? sum(x) : x;
}

}  // namespace troupe
