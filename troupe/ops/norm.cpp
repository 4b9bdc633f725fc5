#include "troupe/ops/norm.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/empty.h>

#include "troupe/kernels/norm/norm.h"
#include "troupe/ops/support/arg_check.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Optional = std::optional<at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;  // y, sum, mean, rstd

struct NormArgs {
  const at::Tensor& x;       // [.., D]
  const Optional& residual;  // as x
  const at::Tensor& weight;  // [D]
  const Optional& bias;      // [D]
  std::string kind;
  double eps;

  static constexpr const char *kName = "norm", *kResults = "(Tensor, Tensor, Tensor, Tensor)";
  static auto visit(auto& a, auto&& f) {
    return f(arg("x", a.x, Dims{"...D"}), arg("residual", a.residual, Dims{"...D"}, kLeadType),
             arg("weight", a.weight, Dims{"D"}, kLeadType),
             arg("bias", a.bias, Dims{"D"}, kLeadType), arg("kind", a.kind), arg("eps", a.eps));
  }
};

// s: what was normed, x or its sum with the residual.
struct NormBackwardArgs {
  const at::Tensor& grad_y;  // [.., D], as grad_sum and s
  const Optional& grad_sum;
  const at::Tensor& s;
  const at::Tensor& weight;  // [D]
  const at::Tensor& mean;    // [R] or [0]
  const at::Tensor& rstd;    // [R]
  std::string kind;
  bool has_bias;

  static constexpr const char *kName = "norm_backward", *kResults = "(Tensor, Tensor, Tensor)";
  static auto visit(auto& a, auto&& f) {
    return f(arg("grad_y", a.grad_y, Dims{"...D"}), arg("grad_sum", a.grad_sum, Dims{"...D"}),
             arg("s", a.s, Dims{"...D"}, kLead), arg("weight", a.weight, Dims{"D"}, kLeadType),
             arg("mean", a.mean, Dims{"*"}), arg("rstd", a.rstd, Dims{"R"}), arg("kind", a.kind),
             arg("has_bias", a.has_bias));
  }
};

void check_same_sizes(const at::Tensor& t, const at::Tensor& x, const char* name) {
  TROUPE_CHECK(t.sym_sizes() == x.sym_sizes(), name, "must have sizes", x.sym_sizes(), "; it has",
               t.sym_sizes());
}

// `sum` is empty without a residual, `mean` unless LayerNorm.
Four norm_meta(const NormArgs& a) {
  const at::Tensor& x = a.x;
  TROUPE_CHECK(x.dim() > 0 && x.sym_size(-1) > 0, "norm: x must have columns; its sizes are",
               x.sym_sizes());
  check_args(a);
  if (a.residual.has_value()) check_same_sizes(*a.residual, x, "norm: residual");
  const auto wide = x.options().dtype(wide_type(x));
  const c10::SymInt rows = x.sym_numel() / x.sym_size(-1);
  return {
      at::empty_symint(x.sym_sizes(), x.options()),
      a.residual.has_value() ? at::empty_symint(x.sym_sizes(), x.options())
                             : at::empty_symint({0}, x.options()),
      at::empty_symint({named_norm(a.kind).kind == NormKind::kLayer ? rows : c10::SymInt(0)}, wide),
      at::empty_symint({rows}, wide)};
}

Four norm_device(const NormArgs& a) {
  Four out = norm_meta(a);
  auto& [y, sum, mean, rstd] = out;
  const NamedNorm k = named_norm(a.kind);
  const at::Tensor rows = rowwise(a.x), w = rowwise(a.weight), y_rows = rowwise(y);
  const at::Tensor r = a.residual.has_value() ? rowwise(*a.residual) : at::Tensor();
  const at::Tensor b = a.bias.has_value() ? rowwise(*a.bias) : at::Tensor();
  const at::Tensor sum_rows = rowwise(sum);
  const at::Tensor mean_column = mean.unsqueeze(1), rstd_column = rstd.unsqueeze(1);
  const bool layer = k.kind == NormKind::kLayer;
  const Norm args{.x = view(rows, "norm: x"),
                  .weight = view(w, "norm: weight"),
                  .y = mut_view(y_rows, "norm: y"),
                  .residual = r.defined() ? view(r, "norm: residual") : MatRef{},
                  .sum = r.defined() ? mut_view(sum_rows, "norm: sum") : MutRef{},
                  .bias = b.defined() ? view(b, "norm: bias") : MatRef{},
                  .mean = layer ? mut_view(mean_column, "norm: mean") : MutRef{},
                  .rstd = mut_view(rstd_column, "norm: rstd"),
                  .kind = k.kind,
                  .eps = static_cast<float>(a.eps),
                  .round_before_weight = k.round};
  run(a.x.device(), args, norm_cpu, &CudaKernels::norm);
  return out;
}

// Gradients of s, weight and bias (empty without one), the last two in float (f64 for f64).
Three norm_backward_meta(const NormBackwardArgs& a) {
  const at::Tensor& s = a.s;
  TROUPE_CHECK(s.dim() > 0 && s.sym_size(-1) > 0,
               "norm_backward: s must have columns; its sizes are", s.sym_sizes());
  const c10::SymInt rows = s.sym_numel() / s.sym_size(-1);
  check_args(a, {{'R', rows}});
  check_same_sizes(a.grad_y, s, "norm_backward: grad_y");
  if (a.grad_sum.has_value()) check_same_sizes(*a.grad_sum, s, "norm_backward: grad_sum");
  check_sizes(a.mean, {named_norm(a.kind).kind == NormKind::kLayer ? rows : c10::SymInt(0)},
              "norm_backward: mean");
  const auto wide = s.options().dtype(wide_type(s));
  const c10::SymInt D = a.weight.sym_size(0);
  return {at::empty_symint(s.sym_sizes(), s.options()), at::empty_symint({D}, wide),
          at::empty_symint({a.has_bias ? D : c10::SymInt(0)}, wide)};
}

Three norm_backward_device(const NormBackwardArgs& a) {
  Three out = norm_backward_meta(a);
  const NamedNorm k = named_norm(a.kind);
  const at::Tensor s = rowwise(a.s), w = rowwise(a.weight), grad = rowwise(a.grad_y);
  const at::Tensor around = a.grad_sum.has_value() ? rowwise(*a.grad_sum) : at::Tensor();
  const at::Tensor grad_s = rowwise(std::get<0>(out)), grad_w = rowwise(std::get<1>(out));
  const at::Tensor grad_b = rowwise(std::get<2>(out));
  const at::Tensor mean = a.mean.unsqueeze(1), rstd = a.rstd.unsqueeze(1);
  NormBackward args{
      .s = view(s, "norm_backward: s"),
      .weight = view(w, "norm_backward: weight"),
      .rstd = view(rstd, "norm_backward: rstd"),
      .grad_y = view(grad, "norm_backward: grad_y"),
      .grad_s = mut_view(grad_s, "norm_backward: grad_s"),
      .grad_weight = mut_view(grad_w, "norm_backward: grad_weight"),
      .grad_bias = a.has_bias ? mut_view(grad_b, "norm_backward: grad_bias") : MutRef{},
      .mean = k.kind == NormKind::kLayer ? view(mean, "norm_backward: mean") : MatRef{},
      .grad_sum = around.defined() ? view(around, "norm_backward: grad_sum") : MatRef{},
      .kind = k.kind,
      .round_before_weight = k.round};
  const at::Tensor workspace = at::empty({workspace_bytes(args)}, s.options().dtype(at::kByte));
  args.workspace = workspace.mutable_data_ptr();
  run(s.device(), args, norm_backward_cpu, &CudaKernels::norm_backward);
  return out;
}

TensorList backward(const Gradients& g, const std::string& kind, bool has_residual) {
  static const auto op = raw_op<decltype(norm_backward_device)>();
  const Optional grad_sum = has_residual ? given(g.outputs[1]) : Optional();
  const auto [grad_s, grad_weight, grad_bias] =
      op({g.outputs[0], grad_sum, g.saved[0], g.saved[1], g.saved[2], g.saved[3], kind,
          /*has_bias=*/g.needs[3]});
  const at::ScalarType type = g.saved[1].scalar_type();
  return {g.needs[0] ? grad_s : at::Tensor(), g.needs[1] ? grad_s : at::Tensor(),
          g.needs[2] ? grad_weight.to(type) : at::Tensor(),
          g.needs[3] ? grad_bias.to(type) : at::Tensor()};
}

Four norm_op(const NormArgs& a) {
  static const auto op = raw_op<decltype(norm_device)>();
  Four out = op(a);
  const auto& [y, sum, mean, rstd] = out;
  const bool added = a.residual.has_value();
  AgainFn again;  // on the CPU a pass over rows costs less than their memory
  if (a.x.is_cpu() && !at::isTensorSubclassLike(a.x)) {
    again = [kind = a.kind, eps = a.eps](const TensorList& saved) {
      return std::get<0>(
          norm_device({saved[0], std::nullopt, saved[1], given(saved[4]), kind, eps}));
    };
  }
  record(
      {.name = "norm",
       .inputs = {a.x, a.residual.value_or(at::Tensor()), a.weight, a.bias.value_or(at::Tensor())},
       .outputs = added ? TensorList{y, sum} : TensorList{y},
       .saved = {added ? sum : a.x, a.weight, mean, rstd, a.bias.value_or(at::Tensor())},
       .backward = [kind = a.kind, added](const Gradients& g) { return backward(g, kind, added); },
       .again = again});
  return out;
}

}  // namespace

NamedNorm named_norm(const std::string& kind) {
  const bool known = kind == "rms" || kind == "rms_rounded" || kind == "layer";
  TROUPE_CHECK(known, "norm: kind must be rms, rms_rounded or layer; it is", kind);
  return {kind == "layer" ? NormKind::kLayer : NormKind::kRms, kind == "rms_rounded"};
}

at::Tensor norm(const at::Tensor& x, const at::Tensor& weight_D,
                const std::optional<at::Tensor>& bias_D, const NormOptions& o) {
  return std::get<0>(norm_op({x, std::nullopt, weight_D, bias_D, o.kind, o.eps}));
}

std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x, const at::Tensor& residual,
                                           const at::Tensor& weight_D,
                                           const std::optional<at::Tensor>& bias_D,
                                           const NormOptions& o) {
  const Four out = norm_op({x, residual, weight_D, bias_D, o.kind, o.eps});
  return {std::get<0>(out), std::get<1>(out)};
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define<norm_device, norm_meta, norm_op>(m);
  define<norm_backward_device, norm_backward_meta>(m);
}

}  // namespace troupe
