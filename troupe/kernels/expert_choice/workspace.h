// The scratch memory of the CUDA path.
#pragma once

#include <cstdint>

#include "troupe/core/number/round.h"
#include "troupe/kernels/expert_choice/expert_choice.h"

namespace troupe::expert_choice_detail {

inline constexpr int64_t kTokensPerBlock = 8;  // of the row-wise kernels, a warp each

// The last pair that an expert takes: smaller keys, and later tokens of the same key, are not.
struct Limit {
  uint32_t key;
  int64_t token;
};

struct Workspace {
  double* squares = nullptr;  // [blocks]  sums of lse^2
  Limit* limits = nullptr;    // [E]
  float* lse = nullptr;       // [T]
  uint32_t* keys = nullptr;   // [E, T]    of the scores; 0: invalid
  int64_t blocks = 0;
  int64_t bytes = 0;
};

inline Workspace workspace(const ExpertChoice& a) {
  const int64_t T = a.logits.rows, E = a.logits.cols;
  auto* base = static_cast<char*>(a.workspace);
  Workspace w;
  w.blocks = ceil_div(T, kTokensPerBlock);
  const auto take = [&]<class V>(V*& pointer, int64_t n) {
    if (base != nullptr) pointer = reinterpret_cast<V*>(base + w.bytes);
    w.bytes += round_up(n * static_cast<int64_t>(sizeof(V)), 16);
  };
  take(w.squares, w.blocks);
  take(w.limits, E);
  take(w.lse, T);
  take(w.keys, E * T);
  return w;
}

}  // namespace troupe::expert_choice_detail
