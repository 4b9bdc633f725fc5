// One call of cuDNN's attention over a row of tokens: its sequences in groups
// (ops/attention/attention_slices), each one plan, and the backward of each in slices. Below
// ops/attention/attention_cudnn, which says what it computes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <vector>

#include "troupe/ops/attention/attention_slices.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/cudnn_attention.h"

namespace troupe {

// The tensor, or a copy that cuDNN's kernels can load: strides in eights from an address in
// sixteens of bytes.
at::Tensor readable(const at::Tensor& x_THd);

// Segments' lengths and starts on the device, group by group.
struct SegmentTable {
  at::Tensor lengths, starts;  // int32, int64; undefined where there is but a dense group
};

// Gradients of keys and values: each dense, or side by side, keys of all heads before the values.
enum class KeyGradients : uint8_t { kApart, kJoined };

struct HeadShape {
  int64_t tokens, keys, heads, kv_heads, key_dim, value_dim;
};

class CudnnProblem {
 public:
  // qkv as readable() gives them.
  CudnnProblem(const TensorList& qkv, std::vector<SequenceGroup> groups, double scale,
               int64_t window, KeyGradients gradients = KeyGradients::kApart);

  bool dense() const { return groups_.size() == 1 && groups_[0].dense; }
  int64_t sequences() const { return places(groups_[0]); }
  SegmentTable table() const;  // nothing waits for the device

  // o [T, H, e] and lse: [sequences, H, T / sequences] of a dense problem, else [T, H].
  void forward(const TensorList& qkv, const at::Tensor& o, const at::Tensor& lse,
               const SegmentTable& table);

  // What a backward reads, and the gradient that is written for all queries of segments.
  struct Backward {
    at::Tensor o, lse, grad_o, grad_q;
  };
  // Gradients of k and v, or of both in one: sums over slices and layers of what adds to one key,
  // zero for keys of no segment. limit: bytes of dS in flight.
  TensorList backward(const TensorList& qkv, const Backward& b, const SegmentTable& table,
                      int64_t limit);

 private:
  template <class Value>
  at::Tensor uploaded(const std::vector<int64_t>& values, at::ScalarType type) const;
  template <class F>
  void for_groups(CudnnAttentionCall call, const SegmentTable& table, F&& f) const;
  void add_starts(const SequenceGroup& group, AttentionTensor t, std::vector<int64_t>& to) const;
  AttentionSlices slices(const SequenceGroup& group, int64_t limit) const;
  AttentionPlan attention_plan(const SequenceGroup& group, int64_t sequences, int64_t heads,
                               int64_t kv_heads) const;
  at::Tensor workspace_for(const AttentionPlan& plan) const;
  CudnnAttentionCall slice_of(const SequenceGroup& group, const CudnnAttentionCall& whole,
                              int64_t sequence, int64_t head, int64_t part) const;
  at::Tensor sums_of_keys(int64_t limit, int64_t columns) const;
  void backward_of(const SequenceGroup& group, const CudnnAttentionCall& whole,
                   const AttentionSlices& s) const;

  HeadShape shape_;
  c10::Device device_;
  std::vector<SequenceGroup> groups_;
  KeyGradients gradients_;
  int64_t layers_;
  AttentionPlan plan_;
};

}  // namespace troupe
