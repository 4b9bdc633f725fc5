#include "troupe/ops/activation.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "troupe/kernels/activation/activation.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Optional = std::optional<at::Tensor>;
using Limits = c10::ArrayRef<double>;  // [clamp, offset]
using Two = std::tuple<at::Tensor, at::Tensor>;

ActivationKind kind_of(const std::string& name, Limits limits) {
  TROUPE_CHECK(limits.size() == 2, "activation: limits must be [clamp, offset]; it has",
               limits.size());
  return {.act = act_of_name(name),
          .clamp = static_cast<float>(limits[0]),
          .offset = static_cast<float>(limits[1])};
}

// Rows that no expert has are not written by the kernel: their zeros are made here.
at::Tensor output(at::IntArrayRef sizes, const at::Tensor& like, const Optional& expert_offset) {
  return expert_offset.has_value() ? at::zeros(sizes, like.options())
                                   : at::empty(sizes, like.options());
}

int64_t experts_of(const Optional& expert_offset) {
  return expert_offset.has_value() ? expert_offset->numel() - 1 : 0;
}

void check_rows(const at::Tensor& h, const Optional& score, const Optional& expert_offset) {
  TROUPE_CHECK(h.dim() > 0, "activation: h must have columns");
  if (score.has_value()) {
    check_sizes(*score, {h.size(-1) == 0 ? 0 : h.numel() / h.size(-1)}, "activation: score");
    check_same_device(*score, h, "activation: score");
    check_dtype(*score, wide_type(h), "activation: score");
  }
  if (!expert_offset.has_value()) return;
  check_sizes(*expert_offset, {-1}, "activation: expert_offset");
  check_same_device(*expert_offset, h, "activation: expert_offset");
}

at::Tensor activation_meta(const at::Tensor& h, const Optional& score,
                           const Optional& expert_offset, std::string kind, bool gated,
                           Limits limits) {
  check_rows(h, score, expert_offset);
  kind_of(kind, limits);
  TROUPE_CHECK(!gated || h.size(-1) % 2 == 0, "activation: h must have gate and up columns; it has",
               h.size(-1));
  std::vector<int64_t> sizes = h.sizes().vec();
  if (gated) sizes.back() /= 2;
  return output(sizes, h, expert_offset);
}

at::Tensor activation_device(const at::Tensor& h, const Optional& score,
                             const Optional& expert_offset, std::string kind, bool gated,
                             Limits limits) {
  at::Tensor u = activation_meta(h, score, expert_offset, kind, gated, limits);
  const at::Tensor rows = rowwise(h), u_rows = rowwise(u);
  const Activation args{
      .h = view(rows, "activation: h"),
      .u = mut_view(u_rows, "activation: u"),
      .score = column(score, "activation: score"),
      .expert_offset = ptr_or_null<const int32_t>(expert_offset, "activation: expert_offset"),
      .num_experts = experts_of(expert_offset),
      .kind = kind_of(kind, limits)};
  run(h.device(), args, activation_cpu, &CudaKernels::activation);
  return u;
}

// The second result is empty without a score.
Two activation_backward_meta(const at::Tensor& grad_u, const at::Tensor& h, const Optional& score,
                             const Optional& expert_offset, std::string /*kind*/,
                             Limits /*limits*/) {
  check_rows(h, score, expert_offset);
  check_same_device(grad_u, h, "activation_backward: grad_u");
  return {output(h.sizes(), h, expert_offset), score.has_value()
                                                   ? output(score->sizes(), *score, expert_offset)
                                                   : at::empty({0}, h.options())};
}

Two activation_backward_device(const at::Tensor& grad_u, const at::Tensor& h, const Optional& score,
                               const Optional& expert_offset, std::string kind, Limits limits) {
  Two out = activation_backward_meta(grad_u, h, score, expert_offset, kind, limits);
  const at::Tensor h_rows = rowwise(h), grad_rows = rowwise(grad_u);
  const at::Tensor grad_h = rowwise(std::get<0>(out)), grad_score = std::get<1>(out).unsqueeze(1);
  const ActivationBackward args{
      .h = view(h_rows, "activation_backward: h"),
      .grad_u = view(grad_rows, "activation_backward: grad_u"),
      .grad_h = mut_view(grad_h, "activation_backward: grad_h"),
      .score = column(score, "activation: score"),
      .grad_score =
          score.has_value() ? mut_view(grad_score, "activation_backward: grad_score") : MutRef{},
      .expert_offset = ptr_or_null<const int32_t>(expert_offset, "activation: expert_offset"),
      .num_experts = experts_of(expert_offset),
      .kind = kind_of(kind, limits)};
  run(h.device(), args, activation_backward_cpu, &CudaKernels::activation_backward);
  return out;
}

at::Tensor activation_op(const at::Tensor& h, const Optional& score, const Optional& expert_offset,
                         std::string kind, bool gated, Limits limits) {
  static const auto op = raw_op<decltype(activation_device)>("troupe::activation");
  static const auto backward =
      raw_op<decltype(activation_backward_device)>("troupe::activation_backward");
  at::Tensor u = op(h, score, expert_offset, kind, gated, limits);
  record({.name = "activation",
          .inputs = {h, score.value_or(at::Tensor())},
          .outputs = {u},
          .saved = {h, score.value_or(at::Tensor()), expert_offset.value_or(at::Tensor())},
          .backward = [kind, limits = limits.vec()](const Gradients& g) -> TensorList {
            const auto [grad_h, grad_score] = backward(g.outputs[0], g.saved[0], given(g.saved[1]),
                                                       given(g.saved[2]), kind, limits);
            return {g.needs[0] ? grad_h : at::Tensor(), g.needs[1] ? grad_score : at::Tensor()};
          }});
  return u;
}

}  // namespace

at::Tensor activation(const at::Tensor& h, const ActivationOptions& o, const RowScale& rows) {
  const double limits[] = {o.clamp, o.offset};
  return activation_op(h, rows.score_R, rows.expert_offset, o.kind, o.gated, limits);
}

void define_activation(torch::Library& m) {
  define(m,
         "activation(Tensor h, Tensor? score, Tensor? expert_offset, str kind, bool gated, "
         "float[] limits) -> Tensor",
         activation_device, activation_meta, activation_op);
  define(m,
         "activation_backward(Tensor grad_u, Tensor h, Tensor? score, Tensor? expert_offset, "
         "str kind, float[] limits) -> (Tensor, Tensor)",
         activation_backward_device, activation_backward_meta);
}

}  // namespace troupe
