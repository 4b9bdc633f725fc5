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

struct ActivationArgs {
  const at::Tensor& h;            // [.., 2F] or [.., F]
  const Optional& score;          // [R]
  const Optional& expert_offset;  // [E + 1]
  std::string kind;
  bool gated;
  Clamp clamp;
  double offset;

  static constexpr const char *kName = "activation", *kResults = "Tensor";
  static auto visit(auto& a, auto&& f) {
    return f(arg("h", a.h), arg("score", a.score), arg("expert_offset", a.expert_offset),
             arg("kind", a.kind), arg("gated", a.gated), arg("clamp", a.clamp, kDefaultNone),
             arg("offset", a.offset, Default{0.}));
  }
};

struct ActivationBackwardArgs {
  const at::Tensor& grad_u;
  const at::Tensor& h;
  const Optional& score;
  const Optional& expert_offset;
  std::string kind;
  Clamp clamp;
  double offset;

  static constexpr const char *kName = "activation_backward", *kResults = "(Tensor, Tensor)";
  static auto visit(auto& a, auto&& f) {
    return f(arg("grad_u", a.grad_u), arg("h", a.h), arg("score", a.score),
             arg("expert_offset", a.expert_offset), arg("kind", a.kind),
             arg("clamp", a.clamp, kDefaultNone), arg("offset", a.offset, Default{0.}));
  }
};

at::Tensor activation_meta(const ActivationArgs& a) {
  check_rows(a.h, a.score, a.expert_offset);
  kind_of(a.kind, a.clamp, a.offset);
  TROUPE_CHECK(!a.gated || a.h.sym_size(-1) % 2 == 0,
               "activation: h must have gate and up columns; it has", a.h.sym_size(-1));
  std::vector<c10::SymInt> sizes = a.h.sym_sizes().vec();
  if (a.gated) sizes.back() = sizes.back() / 2;
  return output(sizes, a.h, a.expert_offset);
}

at::Tensor activation_device(const ActivationArgs& a) {
  at::Tensor u = activation_meta(a);
  const at::Tensor rows = rowwise(a.h), u_rows = rowwise(u);
  if (a.expert_offset.has_value()) {
    check_segments(*a.expert_offset, rows.size(0), "activation: expert_offset");
  }
  const Activation args{
      .h = view(rows, "activation: h"),
      .u = mut_view(u_rows, "activation: u"),
      .score = column(a.score, "activation: score"),
      .expert_offset = ptr_or_null<const int32_t>(a.expert_offset, "activation: expert_offset"),
      .num_experts = experts_of(a.expert_offset),
      .kind = kind_of(a.kind, a.clamp, a.offset)};
  run(a.h.device(), args, activation_cpu, &CudaKernels::activation);
  return u;
}

// The second result is empty without a score.
Two activation_backward_meta(const ActivationBackwardArgs& a) {
  check_rows(a.h, a.score, a.expert_offset);
  check_same_device(a.grad_u, a.h, "activation_backward: grad_u");
  return {output(a.h.sym_sizes(), a.h, a.expert_offset),
          a.score.has_value() ? output(a.score->sym_sizes(), *a.score, a.expert_offset)
                              : at::empty_symint({0}, a.h.options())};
}

Two activation_backward_device(const ActivationBackwardArgs& a) {
  Two out = activation_backward_meta(a);
  const at::Tensor h_rows = rowwise(a.h), grad_rows = rowwise(a.grad_u);
  if (a.expert_offset.has_value()) {
    check_segments(*a.expert_offset, h_rows.size(0), "activation_backward: expert_offset");
  }
  const at::Tensor grad_h = rowwise(std::get<0>(out)), grad_score = std::get<1>(out).unsqueeze(1);
  const ActivationBackward args{
      .h = view(h_rows, "activation_backward: h"),
      .grad_u = view(grad_rows, "activation_backward: grad_u"),
      .grad_h = mut_view(grad_h, "activation_backward: grad_h"),
      .score = column(a.score, "activation: score"),
      .grad_score =
          a.score.has_value() ? mut_view(grad_score, "activation_backward: grad_score") : MutRef{},
      .expert_offset = ptr_or_null<const int32_t>(a.expert_offset, "activation: expert_offset"),
      .num_experts = experts_of(a.expert_offset),
      .kind = kind_of(a.kind, a.clamp, a.offset)};
  run(a.h.device(), args, activation_backward_cpu, &CudaKernels::activation_backward);
  return out;
}

at::Tensor activation_op(const ActivationArgs& a) {
  static const auto op = raw_op<decltype(activation_device)>();
  static const auto backward = raw_op<decltype(activation_backward_device)>();
  at::Tensor u = op(a);
  record({.name = "activation",
          .inputs = {a.h, a.score.value_or(at::Tensor())},
          .outputs = {u},
          .saved = {a.h, a.score.value_or(at::Tensor()), a.expert_offset.value_or(at::Tensor())},
          .backward = [kind = a.kind, clamp = a.clamp,
                       offset = a.offset](const Gradients& g) -> TensorList {
            const auto [grad_h, grad_score] = backward({g.outputs[0], g.saved[0], given(g.saved[1]),
                                                        given(g.saved[2]), kind, clamp, offset});
            return {g.needs[0] ? grad_h : at::Tensor(), g.needs[1] ? grad_score : at::Tensor()};
          }});
  return u;
}

}  // namespace

at::Tensor activation(const at::Tensor& h, const ActivationOptions& o, const RowScale& rows) {
  const Clamp clamp = std::isinf(o.clamp) ? std::nullopt : Clamp(o.clamp);
  return activation_op({h, rows.score_R, rows.expert_offset, o.kind, o.gated, clamp, o.offset});
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define<activation_device, activation_meta, activation_op>(m);
  define<activation_backward_device, activation_backward_meta>(m);
}

}  // namespace troupe
