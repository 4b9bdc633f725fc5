#include "troupe/ops/activation.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "troupe/kernels/activation/activation.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/index_check.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Optional = std::optional<at::Tensor>;
using Two = std::tuple<at::Tensor, at::Tensor>;

// A schema has no number for "none".
using Clamp = std::optional<double>;

ActivationKind kind_of(const std::string& name, Clamp clamp, double offset) {
  constexpr double kNone = std::numeric_limits<double>::infinity();
  return {.act = act_of_name(name),
          .clamp = static_cast<float>(clamp.value_or(kNone)),
          .offset = static_cast<float>(offset)};
}

// Rows that no expert has are not written by the kernel: their zeros are made here.
at::Tensor output(c10::SymIntArrayRef sizes, const at::Tensor& like,
                  const Optional& expert_offset) {
  return expert_offset.has_value() ? at::zeros_symint(sizes, like.options())
                                   : at::empty_symint(sizes, like.options());
}

int64_t experts_of(const Optional& expert_offset) {
  return expert_offset.has_value() ? expert_offset->numel() - 1 : 0;
}

// All but the last dimension.
c10::SymInt row_count(const at::Tensor& h) {
  c10::SymInt rows = h.sym_size(-1) == 0 ? 0 : 1;
  for (int64_t i = 0; i + 1 < h.dim(); ++i) rows = rows * h.sym_size(i);
  return rows;
}

void check_rows(const at::Tensor& h, const Optional& score, const Optional& expert_offset) {
  TROUPE_CHECK(h.dim() > 0, "activation: h must have columns");
  if (score.has_value()) {
    check_sizes(*score, {row_count(h)}, "activation: score");
    check_same_device(*score, h, "activation: score");
    check_dtype(*score, wide_type(h), "activation: score");
  }
  if (!expert_offset.has_value()) return;
  check_sizes(*expert_offset, {-1}, "activation: expert_offset");
  check_same_device(*expert_offset, h, "activation: expert_offset");
}

// LONG: a schema's arguments
at::Tensor activation_meta(const at::Tensor& h, const Optional& score,
                           const Optional& expert_offset, std::string kind, bool gated, Clamp clamp,
                           double offset) {
  check_rows(h, score, expert_offset);
  kind_of(kind, clamp, offset);
  TROUPE_CHECK(!gated || h.sym_size(-1) % 2 == 0,
               "activation: h must have gate and up columns; it has", h.sym_size(-1));
  std::vector<c10::SymInt> sizes = h.sym_sizes().vec();
  if (gated) sizes.back() = sizes.back() / 2;
  return output(sizes, h, expert_offset);
}

// LONG: a schema's arguments
at::Tensor activation_device(const at::Tensor& h, const Optional& score,
                             const Optional& expert_offset, std::string kind, bool gated,
                             Clamp clamp, double offset) {
  at::Tensor u = activation_meta(h, score, expert_offset, kind, gated, clamp, offset);
  const at::Tensor rows = rowwise(h), u_rows = rowwise(u);
  if (expert_offset.has_value()) {
    check_segments(*expert_offset, rows.size(0), "activation: expert_offset");
  }
  const Activation args{
      .h = view(rows, "activation: h"),
      .u = mut_view(u_rows, "activation: u"),
      .score = column(score, "activation: score"),
      .expert_offset = ptr_or_null<const int32_t>(expert_offset, "activation: expert_offset"),
      .num_experts = experts_of(expert_offset),
      .kind = kind_of(kind, clamp, offset)};
  run(h.device(), args, activation_cpu, &CudaKernels::activation);
  return u;
}

// The second result is empty without a score.
// LONG: a schema's arguments
Two activation_backward_meta(const at::Tensor& grad_u, const at::Tensor& h, const Optional& score,
                             const Optional& expert_offset, std::string /*kind*/, Clamp /*clamp*/,
                             double /*offset*/) {
  check_rows(h, score, expert_offset);
  check_same_device(grad_u, h, "activation_backward: grad_u");
  return {output(h.sym_sizes(), h, expert_offset),
          score.has_value() ? output(score->sym_sizes(), *score, expert_offset)
                            : at::empty_symint({0}, h.options())};
}

// LONG: a schema's arguments
Two activation_backward_device(const at::Tensor& grad_u, const at::Tensor& h, const Optional& score,
                               const Optional& expert_offset, std::string kind, Clamp clamp,
                               double offset) {
  Two out = activation_backward_meta(grad_u, h, score, expert_offset, kind, clamp, offset);
  const at::Tensor h_rows = rowwise(h), grad_rows = rowwise(grad_u);
  if (expert_offset.has_value()) {
    check_segments(*expert_offset, h_rows.size(0), "activation_backward: expert_offset");
  }
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
      .kind = kind_of(kind, clamp, offset)};
  run(h.device(), args, activation_backward_cpu, &CudaKernels::activation_backward);
  return out;
}

// LONG: a schema's arguments
at::Tensor activation_op(const at::Tensor& h, const Optional& score, const Optional& expert_offset,
                         std::string kind, bool gated, Clamp clamp, double offset) {
  static const auto op = raw_op<decltype(activation_device)>("troupe::activation");
  static const auto backward =
      raw_op<decltype(activation_backward_device)>("troupe::activation_backward");
  at::Tensor u = op(h, score, expert_offset, kind, gated, clamp, offset);
  record({.name = "activation",
          .inputs = {h, score.value_or(at::Tensor())},
          .outputs = {u},
          .saved = {h, score.value_or(at::Tensor()), expert_offset.value_or(at::Tensor())},
          .backward = [kind, clamp, offset](const Gradients& g) -> TensorList {
            const auto [grad_h, grad_score] = backward(g.outputs[0], g.saved[0], given(g.saved[1]),
                                                       given(g.saved[2]), kind, clamp, offset);
            return {g.needs[0] ? grad_h : at::Tensor(), g.needs[1] ? grad_score : at::Tensor()};
          }});
  return u;
}

}  // namespace

at::Tensor activation(const at::Tensor& h, const ActivationOptions& o, const RowScale& rows) {
  const Clamp clamp = std::isinf(o.clamp) ? std::nullopt : Clamp(o.clamp);
  return activation_op(h, rows.score_R, rows.expert_offset, o.kind, o.gated, clamp, o.offset);
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m,
         "activation(Tensor h, Tensor? score, Tensor? expert_offset, str kind, bool gated, "
         "float? clamp=None, float offset=0.) -> Tensor",
         activation_device, activation_meta, activation_op);
  define(m,
         "activation_backward(Tensor grad_u, Tensor h, Tensor? score, Tensor? expert_offset, "
         "str kind, float? clamp=None, float offset=0.) -> (Tensor, Tensor)",
         activation_backward_device, activation_backward_meta);
}

}  // namespace troupe
