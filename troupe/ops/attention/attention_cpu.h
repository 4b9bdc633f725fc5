// The CPU path of ops/attention/attention: products by BLAS over blocks of queries, softmax between
// them while a block is in cache. A task is one key head of one segment, or of neighbors that
// share keys, so no sum is shared and the result is the same for any number of threads. Nothing of
// size S x S outlives a block.
#pragma once

#include <cstdint>
#include <vector>

#include "troupe/ops/attention/attention_segment.h"

namespace troupe {

// Rows of all heads: head h of token t begins at data + t * ld + h * its dimensions.
template <class T>
struct HeadRows {
  T* data = nullptr;
  int64_t ld = 0;
};

// T: float or double.
template <class T>
struct AttentionProblem {
  int64_t heads, kv_heads, key_dim, value_dim;  // H, G, d, e
  double scale;
  int64_t window;                          // 0: none
  std::vector<AttentionSegment> segments;  // their keys ascend; those of neighbors may overlap
  int64_t tokens;                          // rows of q
  HeadRows<const T> q, k, v;
  const T* sinks = nullptr;  // [H] or none
};

// out [tokens, H e], lse [H, tokens]: log of each query's sum, the sink in it. Those of queries
// without a segment are left as they are; of a query that sees no key out is 0 and lse -inf.
template <class T>
void attention_forward_cpu(const AttentionProblem<T>& p, T* out, T* lse);

template <class T>
struct AttentionGradients {
  HeadRows<T> q, k, v;  // overwritten; every row of a segment
  T* sinks = nullptr;   // [H], overwritten; or none
};
// out and lse as forward left them, or those of a softmax over more keys than these
// (ops/attention/attention_part.h).
template <class T>
struct AttentionResult {
  const T* out;
  const T* lse;
  const T* grad_out;  // [tokens, H e]
};
template <class T>
void attention_backward_cpu(const AttentionProblem<T>& p, const AttentionResult<T>& r,
                            const AttentionGradients<T>& grads);

}  // namespace troupe
