#include "troupe/ops/attention/attention_cudnn.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/cuda_plugin.h"

namespace troupe {
namespace {

constexpr int64_t kWidestHead = 256;  // cuDNN's limit of a head on Hopper

int64_t in_eights(int64_t n) {
  return (n + 7) / 8 * 8;
}

// Strides in eights from an address in sixteens of bytes, which is what cuDNN's kernels load.
AttentionStrides strides_of(const at::Tensor& x) {
  return {x.size(0) > 1 ? x.stride(0) : x.size(1) * x.size(2),
          x.size(1) > 1 ? x.stride(1) : x.size(2)};
}
at::Tensor readable(const at::Tensor& x) {
  const auto [token, head] = strides_of(x);
  const bool even = token % 8 == 0 && head % 8 == 0 && x.stride(2) == 1 &&
                    reinterpret_cast<uintptr_t>(x.const_data_ptr()) % 16 == 0;
  return even ? x : x.clone(at::MemoryFormat::Contiguous);
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

// Documents' lengths and starts on the device, group by group.
struct DocumentTable {
  at::Tensor lengths, starts;  // int32, int64; undefined where there is but a dense group
};

struct HeadShape {
  int64_t tokens, heads, kv_heads, key_dim, value_dim;
};

class CudnnProblem {
 public:
  CudnnProblem(const HeadShape& shape, at::ScalarType type, const c10::Device& device,
               const AttentionForm& form)
      : shape_(shape), device_(device), groups_(groups_of(form.lengths)) {
    plan_.half = type == at::kHalf;
    plan_.device = device.index();
    plan_.key_dim = shape.key_dim;
    plan_.value_dim = shape.value_dim;
    plan_.window = form.window;
    plan_.scale = static_cast<float>(form.scale);
    const auto dense = [&](int64_t heads, int64_t dim) {
      return AttentionStrides{heads * dim, dim};
    };
    plan_.strides[kTensorO] = dense(shape.heads, shape.value_dim);
    plan_.strides[kLse] = {shape.heads, 1};
    plan_.strides[kGradQ] = dense(shape.heads, shape.key_dim);
    plan_.strides[kGradK] = dense(shape.kv_heads, shape.key_dim);
    plan_.strides[kGradV] = dense(shape.kv_heads, shape.value_dim);
  }

  void reads(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    plan_.strides[kTensorQ] = strides_of(q);
    plan_.strides[kTensorK] = strides_of(k);
    plan_.strides[kTensorV] = strides_of(v);
  }

  bool dense() const { return groups_.size() == 1 && groups_[0].dense; }
  int64_t sequences() const { return places(groups_[0]); }

  // Over pinned memory: nothing waits for the device.
  DocumentTable table() const {
    if (dense()) return {};
    std::vector<int64_t> lengths, starts;
    for (const SequenceGroup& group : groups_) {
      const auto n = static_cast<size_t>(places(group));
      lengths.insert(lengths.end(), group.lengths.begin(), group.lengths.end());
      lengths.resize(lengths.size() + n - group.lengths.size(), 0);
      for (const AttentionStrides& stride : plan_.strides) {
        for (const int64_t start : group.starts) starts.push_back(start * stride.token);
        starts.resize(starts.size() + n + 1 - group.starts.size(), 0);
      }
    }
    return {uploaded<int32_t>(lengths, at::kInt), uploaded<int64_t>(starts, at::kLong)};
  }

  void forward(CudnnAttentionCall call, const DocumentTable& table) {
    plan_.backward = false;
    for_groups(call, table, [&](const SequenceGroup& group, const CudnnAttentionCall& here) {
      const AttentionPlan plan = plan_of(group, places(group), shape_.heads, shape_.kv_heads);
      CudnnAttentionCall with = here;
      const at::Tensor workspace = workspace_for(plan);
      with.workspace = workspace.mutable_data_ptr();
      cuda_plugin().attention.run(plan, with);
    });
  }

  // grad_k and grad_v are [parts, T, G, ..], zeros where there is more than one part.
  void backward(CudnnAttentionCall call, const DocumentTable& table, int64_t limit) {
    plan_.backward = true;
    for_groups(call, table, [&](const SequenceGroup& group, const CudnnAttentionCall& here) {
      backward_of(group, here, slices(group, limit));
    });
  }

  int64_t parts(int64_t limit) const {
    int64_t most = 1;
    for (const SequenceGroup& group : groups_) most = std::max(most, slices(group, limit).parts);
    return most;
  }

 private:
  template <class Value>
  at::Tensor uploaded(const std::vector<int64_t>& values, at::ScalarType type) const {
    const at::Tensor host = at::empty({static_cast<int64_t>(values.size())},
                                      at::TensorOptions(type).pinned_memory(true));
    std::copy(values.begin(), values.end(), host.mutable_data_ptr<Value>());
    return host.to(device_, /*non_blocking=*/true);
  }

  template <class F>
  void for_groups(CudnnAttentionCall call, const DocumentTable& table, F&& f) const {
    auto* lengths = dense() ? nullptr : table.lengths.mutable_data_ptr<int32_t>();
    auto* starts = dense() ? nullptr : table.starts.mutable_data_ptr<int64_t>();
    for (const SequenceGroup& group : groups_) {
      if (!group.dense) {
        call.lengths = lengths;
        lengths += places(group);
        for (void*& start : call.starts) {
          start = starts;
          starts += places(group) + 1;
        }
      }
      f(group, call);
    }
  }

  AttentionSlices slices(const SequenceGroup& group, int64_t limit) const {
    return attention_slices(places(group), group.length, shape_.heads, shape_.kv_heads, limit);
  }

  AttentionPlan plan_of(const SequenceGroup& group, int64_t sequences, int64_t heads,
                        int64_t kv_heads) const {
    AttentionPlan plan = plan_;
    plan.ragged = !group.dense;
    plan.sequences = sequences;
    plan.length = group.length;
    plan.heads = heads;
    plan.kv_heads = kv_heads;
    return plan;
  }

  at::Tensor workspace_for(const AttentionPlan& plan) const {
    const int64_t bytes = cuda_plugin().attention.workspace_bytes(plan);
    return at::empty({std::max<int64_t>(bytes, 1)}, at::TensorOptions(at::kByte).device(device_));
  }

  // The slice that begins with this sequence and query head.
  CudnnAttentionCall slice_of(const SequenceGroup& group, const CudnnAttentionCall& whole,
                              int64_t sequence, int64_t head, int64_t part) const {
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
    move(out.tensors[kGradK], 2 * part * shape_.tokens * plan_.strides[kGradK].token);
    move(out.tensors[kGradV], 2 * part * shape_.tokens * plan_.strides[kGradV].token);
    if (group.dense) return out;
    move(out.lengths, 4 * sequence);
    for (void*& start : out.starts) move(start, 8 * sequence);
    return out;
  }

  void backward_of(const SequenceGroup& group, const CudnnAttentionCall& whole,
                   const AttentionSlices& s) const {
    const auto B = static_cast<int64_t>(group.starts.size());  // empty places need no slice
    const int64_t kv_heads = std::max<int64_t>(1, s.heads * shape_.kv_heads / shape_.heads);
    const int64_t heads_of_one = shape_.heads / shape_.kv_heads;
    Lanes lanes(device_, s.in_flight);
    std::vector<at::Tensor> workspaces;  // of the lanes; all of one size but the last sequences'
    const auto lane_count = static_cast<size_t>(s.in_flight);
    size_t lane = 0;
    for (int64_t b = 0; b < B; b += s.sequences) {
      const int64_t n = group.dense ? std::min(s.sequences, B - b) : s.sequences;
      const AttentionPlan plan = plan_of(group, n, s.heads, kv_heads);
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

  HeadShape shape_;
  c10::Device device_;
  std::vector<SequenceGroup> groups_;
  AttentionPlan plan_;
};

CudnnAttentionCall call_of(const TensorList& qkv, const at::Tensor& o, const at::Tensor& lse) {
  CudnnAttentionCall call;
  for (const int t : {kTensorQ, kTensorK, kTensorV})
    call.tensors[t] = const_cast<void*>(qkv[t].const_data_ptr());
  call.tensors[kTensorO] = o.mutable_data_ptr();
  call.tensors[kLse] = lse.mutable_data_ptr();
  return call;
}

CudnnProblem problem_of(const TensorList& qkv, const AttentionForm& form) {
  CudnnProblem out({qkv[0].size(0), qkv[0].size(1), qkv[1].size(1), qkv[0].size(2), qkv[2].size(2)},
                   qkv[0].scalar_type(), qkv[0].device(), form);
  out.reads(qkv[0], qkv[1], qkv[2]);
  return out;
}

// [T, H] of either layout.
at::Tensor by_token(const at::Tensor& lse) {
  return lse.dim() == 2 ? lse : lse.transpose(1, 2).flatten(0, 1);
}

// o and lse of the softmax with one more term, exp(sink): o Z / (Z + exp(sink)).
void add_sink(const at::Tensor& sinks_H, const at::Tensor& o, at::Tensor& lse) {
  const at::Tensor sink = sinks_H.to(at::kFloat);
  o.mul_(at::sigmoid(by_token(lse) - sink).unsqueeze(2));
  lse = at::logaddexp(lse, lse.dim() == 2 ? sink : sink.view({1, -1, 1}));
}

// The sink's value is 0: dS of it is p (0 - sum_e o_e do_e).
at::Tensor sink_gradient(const at::Tensor& sinks_H, const at::Tensor& o, const at::Tensor& grad_o,
                         const at::Tensor& lse) {
  const at::Tensor dot = (o.to(at::kFloat) * grad_o).sum(2);
  const at::Tensor p = at::exp(sinks_H.to(at::kFloat) - by_token(lse));
  return (p * dot).sum(0).neg_().to(sinks_H.scalar_type());
}

TensorList cudnn_backward(const TensorList& qkv, const AttentionForm& form, const Gradients& g,
                          int64_t limit) {
  const at::Tensor &o = g.saved[3], &lse = g.saved[4], &sinks = g.saved[5];
  const at::Tensor grad_o = readable(g.outputs[0].contiguous());
  CudnnProblem problem = problem_of(qkv, form);
  const int64_t parts = problem.parts(limit);
  const auto of_keys = [&](const at::Tensor& x) {
    const std::vector<int64_t> sizes = {parts, x.size(0), x.size(1), x.size(2)};
    return parts > 1 ? at::zeros(sizes, x.options()) : at::empty(sizes, x.options());
  };
  const at::Tensor grad_q = at::empty(qkv[0].sizes(), qkv[0].options());
  const at::Tensor grad_k = of_keys(qkv[1]), grad_v = of_keys(qkv[2]);
  CudnnAttentionCall call = call_of(qkv, o, lse);
  call.grad_o = grad_o.mutable_data_ptr();
  call.tensors[kGradQ] = grad_q.mutable_data_ptr();
  call.tensors[kGradK] = grad_k.mutable_data_ptr();
  call.tensors[kGradV] = grad_v.mutable_data_ptr();
  problem.backward(call, {g.saved[6], g.saved[7]}, limit);
  const auto added = [&](const at::Tensor& x) { return parts > 1 ? x.sum(0) : x[0]; };
  return {grad_q, added(grad_k), added(grad_v),
          sinks.defined() ? sink_gradient(sinks, o, grad_o, lse) : at::Tensor()};
}

at::Tensor padded_to_eights(const at::Tensor& x) {
  const int64_t more = in_eights(x.size(2)) - x.size(2);
  return more == 0 ? x : at::constant_pad_nd(x, {0, more});
}

}  // namespace

std::string why_not_cudnn(const AttentionHeads& heads, const c10::Device& device) {
  if (!device.is_cuda()) return "the device is " + device.str();
  if (at::globalContext().deterministicAlgorithmsWarnOnly()) return "run.deterministic is false";
  if (cuda_plugin().attention.run == nullptr) {
    return "this build had no headers of cuDNN's frontend (./dev setup)";
  }
  const int capability = cuda_plugin().compute_capability(device.index());
  if (capability != 90) {
    return "a repeatable one of cuDNN's is known for compute capability 9.0, and this GPU has " +
           std::to_string(capability / 10) + '.' + std::to_string(capability % 10);
  }
  if (heads.type != at::kBFloat16 && heads.type != at::kHalf) {
    return "cuDNN's computes in bf16 and fp16";
  }
  const int64_t widest = std::max(heads.key_dim, heads.value_dim);
  if (widest > kWidestHead) {
    return "cuDNN's takes heads of " + std::to_string(kWidestHead) + ", and these have " +
           std::to_string(widest);
  }
  if (attention_head_bytes(heads.longest) > kAttentionBytes) {
    return "cuDNN's needs over " + std::to_string(kAttentionBytes >> 20) + " MiB for " +
           std::to_string(heads.longest) + " tokens";
  }
  return {};
}

bool fits_cudnn(const at::Tensor& q, const at::Tensor& v, const AttentionForm& form) {
  if (form.past > 0 || q.numel() == 0) return false;
  const int64_t longest = *std::max_element(form.lengths.begin(), form.lengths.end());
  return why_not_cudnn({q.scalar_type(), q.size(2), v.size(2), longest}, q.device()).empty();
}

at::Tensor attention_cudnn(const at::Tensor& q_THd, const at::Tensor& k_TGd,
                           const at::Tensor& v_TGe, const AttentionForm& form, int64_t limit) {
  const at::Tensor q = padded_to_eights(q_THd), k = padded_to_eights(k_TGd),
                   v = padded_to_eights(v_TGe);
  const int64_t T = q.size(0), H = q.size(1);
  const at::Tensor sinks = form.sinks_H.value_or(at::Tensor());
  TensorList qkv;
  at::Tensor o, lse;
  DocumentTable table;
  {
    const at::NoGradGuard no_grad;
    const c10::DeviceGuard guard(q.device());
    qkv = {readable(q.detach()), readable(k.detach()), readable(v.detach())};
    CudnnProblem problem = problem_of(qkv, form);
    table = problem.table();
    const at::TensorOptions f32 = q.options().dtype(at::kFloat).requires_grad(false);
    const int64_t B = problem.dense() ? problem.sequences() : 0;
    o = at::empty({T, H, v.size(2)}, qkv[0].options());
    lse = problem.dense() ? at::empty({B, H, T / B}, f32) : at::empty({T, H}, f32);
    problem.forward(call_of(qkv, o, lse), table);
    if (sinks.defined()) add_sink(sinks.detach(), o, lse);
  }
  AttentionForm plain = form;
  plain.sinks_H.reset();
  record({.name = "attention",
          .inputs = {q, k, v, sinks},
          .outputs = {o},
          .saved = {qkv[0], qkv[1], qkv[2], o, lse, sinks, table.lengths, table.starts},
          .backward = [plain, limit](const Gradients& g) -> TensorList {
            const c10::DeviceGuard guard(g.saved[0].device());
            return cudnn_backward({g.saved[0], g.saved[1], g.saved[2]}, plain, g, limit);
          }});
  return o.size(2) == v_TGe.size(2) ? o : o.narrow(2, 0, v_TGe.size(2));
}

}  // namespace troupe
