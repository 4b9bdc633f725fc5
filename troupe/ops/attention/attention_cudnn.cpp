#include "troupe/ops/attention/attention_cudnn.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/sigmoid.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "troupe/ops/attention/cudnn_problem.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/cuda_plugin.h"

namespace troupe {
namespace {

constexpr int64_t kWidestHead = 256;  // cuDNN's limit of a head on Hopper

int64_t in_eights(int64_t n) {
  return (n + 7) / 8 * 8;
}

std::vector<SequenceGroup> sequence_groups(const AttentionForm& form) {
  return form.segments.empty() ? groups_of(form.lengths) : groups_of(form.segments);
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

struct CudnnResult {
  at::Tensor o, lse;
  SegmentTable table;
};

// qkv without a graph, as readable() gives them.
CudnnResult cudnn_forward(const TensorList& qkv, const AttentionForm& form,
                          KeyGradients gradients) {
  const at::NoGradGuard no_grad;
  const c10::DeviceGuard guard(qkv[0].device());
  const int64_t T = qkv[0].size(0), H = qkv[0].size(1);
  CudnnProblem problem(qkv, sequence_groups(form), form.scale, form.window, gradients);
  const at::TensorOptions f32 = qkv[0].options().dtype(at::kFloat);
  const int64_t B = problem.dense() ? problem.sequences() : 0;
  CudnnResult out{at::empty({T, H, qkv[2].size(2)}, qkv[0].options()),
                  problem.dense() ? at::empty({B, H, T / B}, f32) : at::empty({T, H}, f32),
                  problem.table()};
  problem.forward(qkv, out.o, out.lse, out.table);
  if (form.sinks_H) add_sink(form.sinks_H->detach(), out.o, out.lse);
  return out;
}

// Gradients of q, of keys and values as CudnnProblem has them, and of the sinks.
TensorList cudnn_backward(const TensorList& qkv, const AttentionForm& form, const CudnnResult& r,
                          const at::Tensor& grad, KeyGradients gradients, int64_t limit) {
  const c10::DeviceGuard guard(qkv[0].device());
  const at::Tensor grad_o = readable(grad.contiguous());
  CudnnProblem problem(qkv, sequence_groups(form), form.scale, form.window, gradients);
  TensorList out = {at::empty(qkv[0].sizes(), qkv[0].options())};
  for (const at::Tensor& x : problem.backward(qkv, {r.o, r.lse, grad_o, out[0]}, r.table, limit)) {
    out.push_back(x);
  }
  out.push_back(form.sinks_H ? sink_gradient(*form.sinks_H, r.o, grad_o, r.lse) : at::Tensor());
  return out;
}

// The form without the sinks' graph, and again with them as a saved tensor.
AttentionForm lacking_sinks(AttentionForm form) {
  form.sinks_H.reset();
  return form;
}
AttentionForm having_sinks(AttentionForm form, const at::Tensor& sinks) {
  if (sinks.defined()) form.sinks_H = sinks;
  return form;
}

TensorList keys_and_values(const at::Tensor& kv_PN, int64_t kv_heads, int64_t d) {
  const int64_t keys = kv_heads * d;
  return {kv_PN.narrow(1, 0, keys).unflatten(1, {kv_heads, d}),
          kv_PN.narrow(1, keys, kv_PN.size(1) - keys).unflatten(1, {kv_heads, -1})};
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
  const std::vector<AttentionSegment> longest = {{0, heads.longest, 0, heads.keys - heads.longest}};
  if (layers_of(groups_of(longest)) > kMostLayers) {
    return "cuDNN's would be cut into more than " + std::to_string(kMostLayers) + " parts for " +
           std::to_string(heads.longest) + " tokens that see " + std::to_string(heads.keys);
  }
  return {};
}

bool fits_cudnn(const at::Tensor& q, const at::Tensor& v, const AttentionForm& form) {
  if (form.past > 0 || q.numel() == 0 || q.is_cpu()) return false;
  return why_not_cudnn({q.scalar_type(), q.size(2), v.size(2), 1}, q.device()).empty() &&
         layers_of(sequence_groups(form)) <= kMostLayers;
}

at::Tensor attention_cudnn(const at::Tensor& q_THd, const at::Tensor& k_PGd,
                           const at::Tensor& v_PGe, const AttentionForm& form, int64_t limit) {
  constexpr KeyGradients kGradients = KeyGradients::kApart;
  const at::Tensor q = padded_to_eights(q_THd), k = padded_to_eights(k_PGd),
                   v = padded_to_eights(v_PGe);
  const at::Tensor sinks = form.sinks_H.value_or(at::Tensor());
  const TensorList qkv = {readable(q.detach()), readable(k.detach()), readable(v.detach())};
  const CudnnResult r = cudnn_forward(qkv, form, kGradients);
  record({.name = "attention",
          .inputs = {q, k, v, sinks},
          .outputs = {r.o},
          .saved = {qkv[0], qkv[1], qkv[2], r.o, r.lse, sinks, r.table.lengths, r.table.starts},
          .backward = [f = lacking_sinks(form), limit](const Gradients& g) -> TensorList {
            const TensorList& s = g.saved;
            return cudnn_backward({s[0], s[1], s[2]}, having_sinks(f, s[5]),
                                  {s[3], s[4], {s[6], s[7]}}, g.outputs[0], kGradients, limit);
          }});
  return r.o.size(2) == v_PGe.size(2) ? r.o : r.o.narrow(2, 0, v_PGe.size(2));
}

at::Tensor joined_attention_cudnn(const at::Tensor& q_THd, const at::Tensor& kv_PN,
                                  int64_t kv_heads, const AttentionForm& form) {
  constexpr KeyGradients kGradients = KeyGradients::kJoined;
  const at::Tensor sinks = form.sinks_H.value_or(at::Tensor());
  const at::Tensor q = readable(q_THd.detach()), kv = kv_PN.detach();
  const auto inputs = [kv_heads](const at::Tensor& queries, const at::Tensor& both) -> TensorList {
    const TensorList apart = keys_and_values(both, kv_heads, queries.size(2));
    return {queries, readable(apart[0]), readable(apart[1])};
  };
  const CudnnResult r = cudnn_forward(inputs(q, kv), form, kGradients);
  record({.name = "joined_attention",
          .inputs = {q_THd, kv_PN, sinks},
          .outputs = {r.o},
          .saved = {q, kv, r.o, r.lse, sinks, r.table.lengths, r.table.starts},
          .backward = [f = lacking_sinks(form), inputs](const Gradients& g) -> TensorList {
            const TensorList& s = g.saved;
            return cudnn_backward(inputs(s[0], s[1]), having_sinks(f, s[4]),
                                  {s[2], s[3], {s[5], s[6]}}, g.outputs[0], kGradients,
                                  kAttentionBytes);
          }});
  return r.o;
}

}  // namespace troupe
