#include "troupe/ops/group_bias.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include "troupe/kernels/group_bias/group_bias.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/index_check.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Optional = std::optional<at::Tensor>;
using Two = std::tuple<at::Tensor, at::Tensor>;

void check(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& expert_offset,
           const Optional& score) {
  check_sizes(x, {-1, -1}, "group_bias: x");
  check_sizes(bias, {-1, x.sym_size(1)}, "group_bias: bias");
  check_dtype(bias, x.scalar_type(), "group_bias: bias");
  check_sizes(expert_offset, {bias.sym_size(0) + 1}, "group_bias: expert_offset");
  check_same_device(bias, x, "group_bias: bias");
  check_same_device(expert_offset, x, "group_bias: expert_offset");
  if (!score.has_value()) return;
  check_sizes(*score, {x.sym_size(0)}, "group_bias: score");
  check_dtype(*score, wide_type(x), "group_bias: score");
  check_same_device(*score, x, "group_bias: score");
}

at::Tensor group_bias_meta(const at::Tensor& x, const at::Tensor& bias,
                           const at::Tensor& expert_offset, const Optional& score) {
  check(x, bias, expert_offset, score);
  return at::empty_like(x, at::MemoryFormat::Contiguous);
}

at::Tensor group_bias_device(const at::Tensor& x, const at::Tensor& bias,
                             const at::Tensor& expert_offset, const Optional& score) {
  check(x, bias, expert_offset, score);
  check_segments(expert_offset, x.size(0), "group_bias: expert_offset");
  at::Tensor y = x.clone(at::MemoryFormat::Contiguous);
  const at::Tensor b = rowwise(bias);
  const GroupBias args{
      .x = view(y, "group_bias: x"),
      .bias = view(b, "group_bias: bias"),
      .y = mut_view(y, "group_bias: y"),
      .expert_offset = ptr<const int32_t>(expert_offset, "group_bias: expert_offset"),
      .score = column(score, "group_bias: score")};
  run(x.device(), args, group_bias_cpu, &CudaKernels::group_bias);
  return y;
}

// grad_bias in float (f64 for f64); grad_score is empty without a score.
Two group_bias_backward_meta(const at::Tensor& grad_y, const at::Tensor& bias,
                             const at::Tensor& expert_offset, const Optional& score) {
  check(grad_y, bias, expert_offset, score);
  const auto wide = grad_y.options().dtype(wide_type(grad_y));
  return {at::empty_symint(bias.sym_sizes(), wide),
          score.has_value() ? at::zeros_symint({grad_y.sym_size(0)}, wide)
                            : at::empty_symint({0}, wide)};
}

Two group_bias_backward_device(const at::Tensor& grad_y, const at::Tensor& bias,
                               const at::Tensor& expert_offset, const Optional& score) {
  Two out = group_bias_backward_meta(grad_y, bias, expert_offset, score);
  check_segments(expert_offset, grad_y.size(0), "group_bias_backward: expert_offset");
  const at::Tensor grad = rowwise(grad_y), b = rowwise(bias);
  const at::Tensor grad_score = std::get<1>(out).unsqueeze(1);
  const GroupBiasBackward args{
      .grad_y = view(grad, "group_bias_backward: grad_y"),
      .grad_bias = mut_view(std::get<0>(out), "group_bias_backward: grad_bias"),
      .expert_offset = ptr<const int32_t>(expert_offset, "group_bias_backward: expert_offset"),
      .score = column(score, "group_bias: score"),
      .bias = score.has_value() ? view(b, "group_bias_backward: bias") : MatRef{},
      .grad_score =
          score.has_value() ? mut_view(grad_score, "group_bias_backward: grad_score") : MutRef{}};
  run(grad.device(), args, group_bias_backward_cpu, &CudaKernels::group_bias_backward);
  return out;
}

at::Tensor group_bias_op(const at::Tensor& x, const at::Tensor& bias,
                         const at::Tensor& expert_offset, const Optional& score) {
  static const auto op = raw_op<decltype(group_bias_device)>("troupe::group_bias");
  static const auto backward =
      raw_op<decltype(group_bias_backward_device)>("troupe::group_bias_backward");
  at::Tensor y = op(x, bias, expert_offset, score);
  record({.name = "group_bias",
          .inputs = {x, bias, score.value_or(at::Tensor())},
          .outputs = {y},
          .saved = {bias, expert_offset, score.value_or(at::Tensor())},
          .backward = [](const Gradients& g) -> TensorList {
            const at::Tensor& grad = g.outputs[0];
            if (!g.needs[1] && !g.needs[2]) return {grad, {}, {}};
            const Optional s = g.saved[2].defined() ? Optional(g.saved[2]) : Optional();
            const auto [grad_bias, grad_score] = backward(grad, g.saved[0], g.saved[1], s);
            return {g.needs[0] ? grad : at::Tensor(),
                    g.needs[1] ? grad_bias.to(g.saved[0].scalar_type()) : at::Tensor(),
                    g.needs[2] ? grad_score : at::Tensor()};
          }});
  return y;
}

}  // namespace

at::Tensor group_bias(const at::Tensor& x_RD, const at::Tensor& bias_ED,
                      const at::Tensor& expert_offset, const std::optional<at::Tensor>& score_R) {
  return group_bias_op(x_RD, bias_ED, expert_offset, score_R);
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m, "group_bias(Tensor x, Tensor bias, Tensor expert_offset, Tensor? score) -> Tensor",
         group_bias_device, group_bias_meta, group_bias_op);
  define(m,
         "group_bias_backward(Tensor grad_y, Tensor bias, Tensor expert_offset, Tensor? score) "
         "-> (Tensor, Tensor)",
         group_bias_backward_device, group_bias_backward_meta);
}

}  // namespace troupe
