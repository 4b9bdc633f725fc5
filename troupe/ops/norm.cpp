#include "troupe/ops/norm.h"

#include <ATen/TensorSubclassLikeUtils.h>
#include <ATen/ops/empty.h>

#include "troupe/kernels/norm/norm.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Optional = std::optional<at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using Four = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;  // y, sum, mean, rstd

void check_parameter(const at::Tensor& p, const at::Tensor& x, const char* name) {
  check_sizes(p, {x.sym_size(-1)}, name);
  check_dtype(p, x.scalar_type(), name);
  check_same_device(p, x, name);
}

// `sum` is empty without a residual, `mean` unless LayerNorm.
Four norm_meta(const at::Tensor& x, const Optional& residual, const at::Tensor& weight,
               const Optional& bias, std::string kind, double /*eps*/) {
  TROUPE_CHECK(x.dim() > 0 && x.sym_size(-1) > 0, "norm: x must have columns; its sizes are",
               x.sym_sizes());
  check_parameter(weight, x, "norm: weight");
  if (bias.has_value()) check_parameter(*bias, x, "norm: bias");
  if (residual.has_value()) {
    TROUPE_CHECK(residual->sym_sizes() == x.sym_sizes(), "norm: residual must have sizes",
                 x.sym_sizes(), "; it has", residual->sym_sizes());
    check_dtype(*residual, x.scalar_type(), "norm: residual");
    check_same_device(*residual, x, "norm: residual");
  }
  const auto wide = x.options().dtype(wide_type(x));
  const c10::SymInt rows = x.sym_numel() / x.sym_size(-1);
  return {
      at::empty_symint(x.sym_sizes(), x.options()),
      residual.has_value() ? at::empty_symint(x.sym_sizes(), x.options())
                           : at::empty_symint({0}, x.options()),
      at::empty_symint({named_norm(kind).kind == NormKind::kLayer ? rows : c10::SymInt(0)}, wide),
      at::empty_symint({rows}, wide)};
}

Four norm_device(const at::Tensor& x, const Optional& residual, const at::Tensor& weight,
                 const Optional& bias, std::string kind, double eps) {
  Four out = norm_meta(x, residual, weight, bias, kind, eps);
  auto& [y, sum, mean, rstd] = out;
  const NamedNorm k = named_norm(kind);
  const at::Tensor rows = rowwise(x), w = rowwise(weight), y_rows = rowwise(y);
  const at::Tensor r = residual.has_value() ? rowwise(*residual) : at::Tensor();
  const at::Tensor b = bias.has_value() ? rowwise(*bias) : at::Tensor(), sum_rows = rowwise(sum);
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
                  .eps = static_cast<float>(eps),
                  .round_before_weight = k.round};
  run(x.device(), args, norm_cpu, &CudaKernels::norm);
  return out;
}

// s: what was normed, x or its sum with the residual. Gradients of s, weight and bias (empty
// without one), the last two in float (f64 for f64). LONG: a schema's arguments
Three norm_backward_meta(const at::Tensor& grad_y, const Optional& grad_sum, const at::Tensor& s,
                         const at::Tensor& weight, const at::Tensor& mean, const at::Tensor& rstd,
                         std::string kind, bool has_bias) {
  TROUPE_CHECK(s.dim() > 0 && s.sym_size(-1) > 0,
               "norm_backward: s must have columns; its sizes are", s.sym_sizes());
  const c10::SymInt rows = s.sym_numel() / s.sym_size(-1);
  const auto check_like = [&](const at::Tensor& t, const char* name) {
    TROUPE_CHECK(t.sym_sizes() == s.sym_sizes(), name, "must have sizes", s.sym_sizes(), "; it has",
                 t.sym_sizes());
    check_same_device(t, s, name);
  };
  check_like(grad_y, "norm_backward: grad_y");
  if (grad_sum.has_value()) check_like(*grad_sum, "norm_backward: grad_sum");
  check_parameter(weight, s, "norm_backward: weight");
  check_sizes(mean, {named_norm(kind).kind == NormKind::kLayer ? rows : c10::SymInt(0)},
              "norm_backward: mean");
  check_sizes(rstd, {rows}, "norm_backward: rstd");
  check_same_device(mean, s, "norm_backward: mean");
  check_same_device(rstd, s, "norm_backward: rstd");
  const auto wide = s.options().dtype(wide_type(s));
  const c10::SymInt D = weight.sym_size(0);
  return {at::empty_symint(s.sym_sizes(), s.options()), at::empty_symint({D}, wide),
          at::empty_symint({has_bias ? D : c10::SymInt(0)}, wide)};
}

// LONG: a schema's arguments
Three norm_backward_device(const at::Tensor& grad_y, const Optional& grad_sum,
                           const at::Tensor& s_in, const at::Tensor& weight,
                           const at::Tensor& mean_in, const at::Tensor& rstd_in, std::string kind,
                           bool has_bias) {
  Three out = norm_backward_meta(grad_y, grad_sum, s_in, weight, mean_in, rstd_in, kind, has_bias);
  const NamedNorm k = named_norm(kind);
  const at::Tensor s = rowwise(s_in), w = rowwise(weight), grad = rowwise(grad_y);
  const at::Tensor around = grad_sum.has_value() ? rowwise(*grad_sum) : at::Tensor();
  const at::Tensor grad_s = rowwise(std::get<0>(out)), grad_w = rowwise(std::get<1>(out));
  const at::Tensor grad_b = rowwise(std::get<2>(out));
  const at::Tensor mean = mean_in.unsqueeze(1), rstd = rstd_in.unsqueeze(1);
  NormBackward args{
      .s = view(s, "norm_backward: s"),
      .weight = view(w, "norm_backward: weight"),
      .rstd = view(rstd, "norm_backward: rstd"),
      .grad_y = view(grad, "norm_backward: grad_y"),
      .grad_s = mut_view(grad_s, "norm_backward: grad_s"),
      .grad_weight = mut_view(grad_w, "norm_backward: grad_weight"),
      .grad_bias = has_bias ? mut_view(grad_b, "norm_backward: grad_bias") : MutRef{},
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
  static const auto op = raw_op<decltype(norm_backward_device)>("troupe::norm_backward");
  const Optional grad_sum = has_residual ? given(g.outputs[1]) : Optional();
  const auto [grad_s, grad_weight, grad_bias] =
      op(g.outputs[0], grad_sum, g.saved[0], g.saved[1], g.saved[2], g.saved[3], kind,
         /*has_bias=*/g.needs[3]);
  const at::ScalarType type = g.saved[1].scalar_type();
  return {g.needs[0] ? grad_s : at::Tensor(), g.needs[1] ? grad_s : at::Tensor(),
          g.needs[2] ? grad_weight.to(type) : at::Tensor(),
          g.needs[3] ? grad_bias.to(type) : at::Tensor()};
}

Four norm_op(const at::Tensor& x, const Optional& residual, const at::Tensor& weight,
             const Optional& bias, std::string kind, double eps) {
  static const auto op = raw_op<decltype(norm_device)>("troupe::norm");
  Four out = op(x, residual, weight, bias, kind, eps);
  const auto& [y, sum, mean, rstd] = out;
  const bool added = residual.has_value();
  AgainFn again;  // on the CPU a pass over rows costs less than their memory
  if (x.is_cpu() && !at::isTensorSubclassLike(x)) {
    again = [kind, eps](const TensorList& saved) {
      return std::get<0>(norm_device(saved[0], {}, saved[1], given(saved[4]), kind, eps));
    };
  }
  record({.name = "norm",
          .inputs = {x, residual.value_or(at::Tensor()), weight, bias.value_or(at::Tensor())},
          .outputs = added ? TensorList{y, sum} : TensorList{y},
          .saved = {added ? sum : x, weight, mean, rstd, bias.value_or(at::Tensor())},
          .backward = [kind, added](const Gradients& g) { return backward(g, kind, added); },
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
  return std::get<0>(norm_op(x, {}, weight_D, bias_D, o.kind, o.eps));
}

std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x, const at::Tensor& residual,
                                           const at::Tensor& weight_D,
                                           const std::optional<at::Tensor>& bias_D,
                                           const NormOptions& o) {
  const Four out = norm_op(x, residual, weight_D, bias_D, o.kind, o.eps);
  return {std::get<0>(out), std::get<1>(out)};
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m,
         "norm(Tensor x, Tensor? residual, Tensor weight, Tensor? bias, str kind, float eps) "
         "-> (Tensor, Tensor, Tensor, Tensor)",
         norm_device, norm_meta, norm_op);
  define(m,
         "norm_backward(Tensor grad_y, Tensor? grad_sum, Tensor s, Tensor weight, Tensor mean, "
         "Tensor rstd, str kind, bool has_bias) "
         "-> (Tensor, Tensor, Tensor)",
         norm_backward_device, norm_backward_meta);
}

}  // namespace troupe
