#include "troupe/ops/attention/cudnn_problem.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "troupe/ops/support/cuda_plugin.h"

namespace troupe {
namespace {

AttentionStrides strides_of(const at::Tensor& x) {
  return {x.size(0) > 1 ? x.stride(0) : x.size(1) * x.size(2),
          x.size(1) > 1 ? x.stride(1) : x.size(2)};
}

bool of_keys(AttentionTensor t) {
  return t == kTensorK || t == kTensorV || t == kGradK || t == kGradV;
}

// PyTorch's current stream and, for two slices in flight, another that starts and ends with it.
class Lanes {
 public:
  Lanes(const c10::Device& device, int64_t count)
      : impl_(device.type()), event_(device.type()), streams_{impl_.getStream(device)} {
    if (count == 1) return;
    streams_.push_back(impl_.getStreamFromGlobalPool(device, /*isHighPriority=*/false));
    wait(1, 0);
  }
  template <class F>
  void on(size_t lane, F&& f) const {
    const c10::StreamGuard guard(streams_[lane]);
    f();
  }
  void join() {
    if (streams_.size() > 1) wait(0, 1);
  }

 private:
  void wait(size_t lane, size_t for_lane) {
    event_.record(streams_[for_lane]);
    event_.block(streams_[lane]);
  }

  c10::impl::VirtualGuardImpl impl_;
  c10::Event event_;
  std::vector<c10::Stream> streams_;
};

CudnnAttentionCall call_of(const TensorList& qkv, const at::Tensor& o, const at::Tensor& lse) {
  CudnnAttentionCall call;
  for (const int t : {kTensorQ, kTensorK, kTensorV})
    call.tensors[t] = const_cast<void*>(qkv[t].const_data_ptr());
  call.tensors[kTensorO] = o.mutable_data_ptr();
  call.tensors[kLse] = lse.mutable_data_ptr();
  return call;
}

}  // namespace

at::Tensor readable(const at::Tensor& x) {
  const auto [token, head] = strides_of(x);
  const bool even = token % 8 == 0 && head % 8 == 0 && x.stride(2) == 1 &&
                    reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
  return even ? x : x.clone(at::MemoryFormat::Contiguous);
}

CudnnProblem::CudnnProblem(const TensorList& qkv, std::vector<SequenceGroup> groups, double scale,
                           int64_t window, KeyGradients gradients)
    : shape_{qkv[0].size(0), qkv[1].size(0), qkv[0].size(1),
             qkv[1].size(1), qkv[0].size(2), qkv[2].size(2)},
      device_(qkv[0].device()),
      groups_(std::move(groups)),
      gradients_(gradients),
      layers_(layers_of(groups_)) {
  plan_.half = qkv[0].scalar_type() == at::kHalf;
  plan_.device = device_.index();
  plan_.key_dim = shape_.key_dim;
  plan_.value_dim = shape_.value_dim;
  plan_.window = window;
  plan_.scale = static_cast<float>(scale);
  const auto dense = [&](int64_t heads, int64_t dim) { return AttentionStrides{heads * dim, dim}; };
  for (const int t : {kTensorQ, kTensorK, kTensorV}) plan_.strides[t] = strides_of(qkv[t]);
  plan_.strides[kTensorO] = dense(shape_.heads, shape_.value_dim);
  plan_.strides[kLse] = {shape_.heads, 1};
  plan_.strides[kGradQ] = dense(shape_.heads, shape_.key_dim);
  plan_.strides[kGradK] = dense(shape_.kv_heads, shape_.key_dim);
  plan_.strides[kGradV] = dense(shape_.kv_heads, shape_.value_dim);
  if (gradients_ == KeyGradients::kApart) return;
  const int64_t joined = plan_.strides[kGradK].token + plan_.strides[kGradV].token;
  plan_.strides[kGradK].token = plan_.strides[kGradV].token = joined;
}

void CudnnProblem::add_starts(const SequenceGroup& group, AttentionTensor t,
                              std::vector<int64_t>& to) const {
  const size_t end = to.size() + static_cast<size_t>(places(group)) + 1;
  for (size_t i = 0; i < group.segments.size(); ++i) {
    const AttentionSegment& s = group.segments[i];
    const int64_t layer = t == kGradK || t == kGradV ? group.layers[i] * shape_.keys : 0;
    to.push_back((of_keys(t) ? layer + s.k : s.q) * plan_.strides[t].token);
  }
  to.resize(end, 0);
}

SegmentTable CudnnProblem::table() const {
  if (dense()) return {};
  std::vector<int64_t> lengths, starts;
  for (const SequenceGroup& group : groups_) {
    const auto n = static_cast<size_t>(places(group));
    for (const auto count : {&AttentionSegment::rows, &AttentionSegment::keys}) {
      for (const AttentionSegment& s : group.segments) lengths.push_back(s.*count);
      lengths.resize(lengths.size() + n - group.segments.size(), 0);
    }
    for (int t = 0; t < kAttentionTensors; ++t) {
      add_starts(group, static_cast<AttentionTensor>(t), starts);
    }
  }
  return {uploaded<int32_t>(lengths, at::kInt), uploaded<int64_t>(starts, at::kLong)};
}

void CudnnProblem::forward(const TensorList& qkv, const at::Tensor& o, const at::Tensor& lse,
                           const SegmentTable& table) {
  plan_.backward = false;
  for_groups(call_of(qkv, o, lse), table,
             [&](const SequenceGroup& group, const CudnnAttentionCall& here) {
               const AttentionPlan plan =
                   attention_plan(group, places(group), shape_.heads, shape_.kv_heads);
               CudnnAttentionCall with = here;
               const at::Tensor workspace = workspace_for(plan);
               with.workspace = workspace.mutable_data_ptr();
               cuda_plugin().attention.run(plan, with);
             });
}

// [sums, keys, columns]
at::Tensor CudnnProblem::sums_of_keys(int64_t limit, int64_t columns) const {
  int64_t sums = 1, keys = 0;
  for (const SequenceGroup& group : groups_) {
    sums = std::max(sums, slices(group, limit).parts);
    for (const AttentionSegment& s : group.segments) keys += s.keys;
  }
  sums *= layers_;
  const auto options = at::TensorOptions(plan_.half ? at::kHalf : at::kBFloat16).device(device_);
  const bool all_written = sums == 1 && keys == shape_.keys;
  return all_written ? at::empty({sums, shape_.keys, columns}, options)
                     : at::zeros({sums, shape_.keys, columns}, options);
}

TensorList CudnnProblem::backward(const TensorList& qkv, const Backward& b,
                                  const SegmentTable& table, int64_t limit) {
  const int64_t key_columns = shape_.kv_heads * shape_.key_dim,
                value_columns = shape_.kv_heads * shape_.value_dim;
  const bool joined = gradients_ == KeyGradients::kJoined;
  const at::Tensor grad_k = sums_of_keys(limit, key_columns + (joined ? value_columns : 0));
  const at::Tensor grad_v =
      joined ? grad_k.narrow(2, key_columns, value_columns) : sums_of_keys(limit, value_columns);
  CudnnAttentionCall call = call_of(qkv, b.o, b.lse);
  call.grad_o = b.grad_o.mutable_data_ptr();
  call.tensors[kGradQ] = b.grad_q.mutable_data_ptr();
  call.tensors[kGradK] = grad_k.mutable_data_ptr();
  call.tensors[kGradV] = grad_v.mutable_data_ptr();
  plan_.backward = true;
  for_groups(call, table, [&](const SequenceGroup& group, const CudnnAttentionCall& here) {
    backward_of(group, here, slices(group, limit));
  });
  const auto added = [](const at::Tensor& x) { return x.size(0) > 1 ? x.sum(0) : x[0]; };
  if (joined) return {added(grad_k)};
  return {added(grad_k).view(qkv[1].sizes()), added(grad_v).view(qkv[2].sizes())};
}

template <class Value>
at::Tensor CudnnProblem::uploaded(const std::vector<int64_t>& values, at::ScalarType type) const {
  const at::Tensor host =
      at::empty({static_cast<int64_t>(values.size())}, at::TensorOptions(type).pinned_memory(true));
  std::copy(values.begin(), values.end(), host.mutable_data_ptr<Value>());
  return host.to(device_, /*non_blocking=*/true);
}

template <class F>
void CudnnProblem::for_groups(CudnnAttentionCall call, const SegmentTable& table, F&& f) const {
  auto* lengths = dense() ? nullptr : table.lengths.mutable_data_ptr<int32_t>();
  auto* starts = dense() ? nullptr : table.starts.mutable_data_ptr<int64_t>();
  for (const SequenceGroup& group : groups_) {
    if (!group.dense) {
      call.lengths = lengths;
      call.key_lengths = lengths + places(group);
      lengths += 2 * places(group);
      for (void*& start : call.starts) {
        start = starts;
        starts += places(group) + 1;
      }
    }
    f(group, call);
  }
}

AttentionSlices CudnnProblem::slices(const SequenceGroup& group, int64_t limit) const {
  return attention_slices(places(group), attention_head_bytes(group.length, group.keys),
                          shape_.heads, shape_.kv_heads, limit);
}

AttentionPlan CudnnProblem::attention_plan(const SequenceGroup& group, int64_t sequences,
                                           int64_t heads, int64_t kv_heads) const {
  AttentionPlan plan = plan_;
  plan.ragged = !group.dense;
  plan.mask = group.mask;
  if (group.mask == AttentionMask::kNone) plan.window = 0;
  plan.sequences = sequences;
  plan.length = group.length;
  plan.keys = group.keys;
  plan.heads = heads;
  plan.kv_heads = kv_heads;
  return plan;
}

at::Tensor CudnnProblem::workspace_for(const AttentionPlan& plan) const {
  const int64_t bytes = cuda_plugin().attention.workspace_bytes(plan);
  return at::empty({std::max<int64_t>(bytes, 1)}, at::TensorOptions(at::kByte).device(device_));
}

// The slice that begins with this sequence and query head.
CudnnAttentionCall CudnnProblem::slice_of(const SequenceGroup& group,
                                          const CudnnAttentionCall& whole, int64_t sequence,
                                          int64_t head, int64_t part) const {
  const int64_t kv_head = head / (shape_.heads / shape_.kv_heads);
  CudnnAttentionCall out = whole;
  const auto place = [&](int t, int64_t at_head) {
    const auto [token, stride] = plan_.strides[t];
    return at_head * stride + (group.dense ? sequence * group.length * token : 0);
  };
  const auto move = [](void*& p, int64_t bytes) { p = static_cast<char*>(p) + bytes; };
  for (const int t : {kTensorQ, kTensorO, kGradQ}) move(out.tensors[t], 2 * place(t, head));
  for (const int t : {kTensorK, kTensorV, kGradK, kGradV})
    move(out.tensors[t], 2 * place(t, kv_head));
  move(out.grad_o, 2 * place(kTensorO, head));
  move(out.tensors[kLse],
       4 * (group.dense ? (sequence * shape_.heads + head) * group.length : head));
  for (const int t : {kGradK, kGradV})
    move(out.tensors[t], 2 * part * layers_ * shape_.keys * plan_.strides[t].token);
  if (group.dense) return out;
  move(out.lengths, 4 * sequence);
  move(out.key_lengths, 4 * sequence);
  for (void*& start : out.starts) move(start, 8 * sequence);
  return out;
}

void CudnnProblem::backward_of(const SequenceGroup& group, const CudnnAttentionCall& whole,
                               const AttentionSlices& s) const {
  const auto B = static_cast<int64_t>(group.segments.size());  // empty places need no slice
  const int64_t kv_heads = std::max<int64_t>(1, s.heads * shape_.kv_heads / shape_.heads);
  const int64_t heads_of_one = shape_.heads / shape_.kv_heads;
  Lanes lanes(device_, s.in_flight);
  std::vector<at::Tensor> workspaces;  // of the lanes; all of one size but the last sequences'
  const auto lane_count = static_cast<size_t>(s.in_flight);
  size_t lane = 0;
  for (int64_t b = 0; b < B; b += s.sequences) {
    const int64_t n = std::min(s.sequences, places(group) - b);
    const AttentionPlan plan = attention_plan(group, n, s.heads, kv_heads);
    for (int64_t h = 0; h < shape_.heads; h += s.heads, lane = (lane + 1) % lane_count) {
      if (workspaces.size() <= lane) workspaces.push_back(workspace_for(plan));
      CudnnAttentionCall call =
          slice_of(group, whole, b, h, s.parts > 1 ? h % heads_of_one / s.heads : 0);
      call.workspace = workspaces[lane].mutable_data_ptr();
      lanes.on(lane, [&] { cuda_plugin().attention.run(plan, call); });
    }
  }
  lanes.join();
}

}  // namespace troupe
