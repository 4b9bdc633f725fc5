// The CPU path of ops/attention/attention: products by BLAS over blocks of queries, softmax between
// them while a block is in cache. A task is one key head of one segment, so no sum is shared and
// the result is the same for any number of threads. Nothing of size S x S outlives a block.
#pragma once

#include <cstdint>
#include <vector>

namespace troupe {

// Queries [q, q + rows) see keys from k on: query q + i those up to k + past + i.
struct AttentionSegment {
  int64_t q, rows, k, past;
};

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
  int64_t window;  // 0: none
  std::vector<AttentionSegment> segments;
  int64_t tokens;  // rows of q
  HeadRows<const T> q, k, v;
  const T* sinks = nullptr;  // [H] or none
};

// out [tokens, H e], lse [H, tokens]: log of each query's sum, the sink in it.
template <class T>
void attention_forward_cpu(const AttentionProblem<T>& p, T* out, T* lse);

template <class T>
struct AttentionGradients {
  HeadRows<T> q, k, v;  // overwritten; every row of a segment
  T* sinks = nullptr;   // [H], overwritten; or none
};
// out and lse as forward left them.
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
