#include "troupe/ops/attention/attention_part_cudnn.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <limits>

#include "troupe/ops/attention/attention_cudnn.h"
#include "troupe/ops/attention/cudnn_problem.h"

namespace troupe {
namespace {

bool is_plain(const AttentionSegment& s, int64_t window) {
  const bool all = seen_keys(s, 0, 0).to == s.keys && seen_keys(s, s.rows - 1, window).from == 0;
  return s.keys > 0 && (s.keys == s.past + s.rows || all);
}

TensorList inputs_of(const PartInputs& in) {
  return {readable(in.q_THd.detach()), readable(in.k_PGd.detach()), readable(in.v_PGe.detach())};
}

}  // namespace

bool part_fits_cudnn(const PartInputs& in, const PartForm& form) {
  const auto& [q, k, v] = in;
  const auto plain = [&](const AttentionSegment& s) { return is_plain(s, form.window); };
  if (q.is_cpu() || q.size(2) % 8 != 0 || v.size(2) % 8 != 0 || form.segments.empty() ||
      !std::ranges::all_of(form.segments, plain)) {
    return false;
  }
  return why_not_cudnn({q.scalar_type(), q.size(2), v.size(2), 1}, q.device()).empty() &&
         layers_of(groups_of(form.segments)) <= kMostLayers;
}

void part_by_cudnn(const PartInputs& in, const PartForm& form, AttentionPart& to) {
  const c10::DeviceGuard guard(in.q_THd.device());
  const TensorList qkv = inputs_of(in);
  const int64_t T = qkv[0].size(0), H = qkv[0].size(1);
  const at::Tensor o = at::zeros({T, H, qkv[2].size(2)}, qkv[0].options());
  const at::Tensor lse =
      at::full({T, H}, -std::numeric_limits<float>::infinity(), to.lse_HT.options());
  CudnnProblem problem(qkv, groups_of(form.segments), form.scale, form.window);
  problem.forward(qkv, o, lse, problem.table());
  to.out_THe.copy_(o);
  to.lse_HT.copy_(lse.t());
}

PartGradients part_backward_by_cudnn(const PartInputs& in, const PartForm& form,
                                     const AttentionPart& whole, const at::Tensor& grad) {
  const c10::DeviceGuard guard(in.q_THd.device());
  const TensorList qkv = inputs_of(in);
  const auto narrow = [&](const at::Tensor& x) { return x.to(qkv[0].scalar_type()).contiguous(); };
  const CudnnProblem::Backward back{narrow(whole.out_THe), whole.lse_HT.t().contiguous(),
                                    narrow(grad), at::zeros(qkv[0].sizes(), qkv[0].options())};
  CudnnProblem problem(qkv, groups_of(form.segments), form.scale, form.window);
  const TensorList of_keys = problem.backward(qkv, back, problem.table(), kAttentionBytes);
  const auto wide = [&](const at::Tensor& x) { return x.to(grad.scalar_type()); };
  return {wide(back.grad_q), wide(of_keys[0]), wide(of_keys[1])};
}

}  // namespace troupe
