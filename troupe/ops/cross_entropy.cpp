#include "troupe/ops/cross_entropy.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "troupe/kernels/cross_entropy/cross_entropy.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using Optional = std::optional<at::Tensor>;
using Two = std::tuple<at::Tensor, at::Tensor>;

void check(const at::Tensor& logits, const at::Tensor& target, const Optional& weight) {
  check_sizes(logits, {-1, -1}, "cross_entropy: logits");
  check_sizes(target, {logits.sym_size(0)}, "cross_entropy: target");
  check_dtype(target, at::kLong, "cross_entropy: target");
  check_same_device(target, logits, "cross_entropy: target");
  if (!weight.has_value()) return;
  check_sizes(*weight, {logits.sym_size(0)}, "cross_entropy: weight");
  check_dtype(*weight, wide_type(logits), "cross_entropy: weight");
  check_same_device(*weight, logits, "cross_entropy: weight");
}

Two cross_entropy_meta(const at::Tensor& logits, const at::Tensor& target, const Optional& weight,
                       double /*z_loss*/, int64_t /*ignore*/) {
  check(logits, target, weight);
  const auto wide = logits.options().dtype(wide_type(logits));
  return {at::empty_symint({logits.sym_size(0)}, wide),
          at::empty_symint({logits.sym_size(0)}, wide)};
}

Two cross_entropy_device(const at::Tensor& logits, const at::Tensor& target, const Optional& weight,
                         double z_loss, int64_t ignore) {
  Two out = cross_entropy_meta(logits, target, weight, z_loss, ignore);
  const at::Tensor x = rowwise(logits), words = target.contiguous();
  const at::Tensor loss = std::get<0>(out).unsqueeze(1), lse = std::get<1>(out).unsqueeze(1);
  const CrossEntropy args{.logits = view(x, "cross_entropy: logits"),
                          .target = ptr<const int64_t>(words, "cross_entropy: target"),
                          .loss = mut_view(loss, "cross_entropy: loss"),
                          .lse = mut_view(lse, "cross_entropy: lse"),
                          .weight = column(weight, "cross_entropy: weight"),
                          .z_loss = static_cast<float>(z_loss),
                          .ignore = ignore};
  run(x.device(), args, cross_entropy_cpu, &CudaKernels::cross_entropy);
  return out;
}

// LONG: a schema's arguments
at::Tensor cross_entropy_backward_meta(const at::Tensor& grad_loss, const at::Tensor& logits,
                                       const at::Tensor& target, const at::Tensor& lse,
                                       const Optional& weight, double /*z_loss*/,
                                       int64_t /*ignore*/) {
  check(logits, target, weight);
  check_sizes(grad_loss, {logits.sym_size(0)}, "cross_entropy_backward: grad_loss");
  check_sizes(lse, {logits.sym_size(0)}, "cross_entropy_backward: lse");
  check_same_device(grad_loss, logits, "cross_entropy_backward: grad_loss");
  check_same_device(lse, logits, "cross_entropy_backward: lse");
  return at::empty_symint(logits.sym_sizes(), logits.options());
}

// What forward saw and made.
struct Saved {
  const at::Tensor &logits, &target, &lse;
};

void gradient_into(const at::Tensor& grad_logits, const at::Tensor& grad_loss, const Saved& saved,
                   const Optional& weight, double z_loss, int64_t ignore) {
  const at::Tensor x = rowwise(saved.logits), words = saved.target.contiguous();
  const at::Tensor lse = saved.lse.unsqueeze(1);
  const bool one = grad_loss.numel() > 1 && grad_loss.stride(0) == 0;  // As sum() hands back.
  const at::Tensor grad = grad_loss.contiguous().unsqueeze(1);
  MatRef grad_view = view(grad, "cross_entropy_backward: grad_loss");
  if (one) grad_view.ld = 0;
  const CrossEntropyBackward args{
      .logits = view(x, "cross_entropy_backward: logits"),
      .target = ptr<const int64_t>(words, "cross_entropy_backward: target"),
      .lse = view(lse, "cross_entropy_backward: lse"),
      .grad_loss = grad_view,
      .grad_logits = mut_view(grad_logits, "cross_entropy_backward: grad_logits"),
      .weight = column(weight, "cross_entropy_backward: weight"),
      .z_loss = static_cast<float>(z_loss),
      .ignore = ignore};
  run(x.device(), args, cross_entropy_backward_cpu, &CudaKernels::cross_entropy_backward);
}

// LONG: a schema's arguments
at::Tensor cross_entropy_backward_device(const at::Tensor& grad_loss, const at::Tensor& logits,
                                         const at::Tensor& target, const at::Tensor& lse,
                                         const Optional& weight, double z_loss, int64_t ignore) {
  at::Tensor grad =
      cross_entropy_backward_meta(grad_loss, logits, target, lse, weight, z_loss, ignore);
  gradient_into(grad, grad_loss, {logits, target, lse}, weight, z_loss, ignore);
  return grad;
}

Two cross_entropy_op(const at::Tensor& logits, const at::Tensor& target, const Optional& weight,
                     double z_loss, int64_t ignore) {
  static const auto op = raw_op<decltype(cross_entropy_device)>("troupe::cross_entropy");
  static const auto backward =
      raw_op<decltype(cross_entropy_backward_device)>("troupe::cross_entropy_backward");
  Two out = op(logits, target, weight, z_loss, ignore);
  const auto& [loss, lse] = out;
  record({.name = "cross_entropy",
          .inputs = {logits},
          .outputs = {loss},
          .saved = {logits, target, lse, weight.value_or(at::Tensor())},
          .backward = [z_loss, ignore](const Gradients& g) -> TensorList {
            return {backward(g.outputs[0], g.saved[0], g.saved[1], g.saved[2], given(g.saved[3]),
                             z_loss, ignore)};
          }});
  return out;
}

// The sum of the losses, lse, and the gradients of that sum: empty where `wanted` is false.
struct Head {
  at::Tensor loss, lse, grad_x, grad_weight;
};

struct Wanted {
  bool x, weight;
};

// sum += a b, or sum = a b where there is none yet. A GPU's product adds to the wide sum itself; a
// product of its own, rounded, would be written, read and added.
void add_product(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b, at::ScalarType type) {
  const bool widens = a.is_cuda() && a.scalar_type() != type;
  if (!sum.defined()) {
    sum = widens ? at::mm(a, b, type) : at::mm(a, b).to(type);
  } else if (widens) {
    at::addmm_out(sum, sum, a, b, type);
  } else {
    sum.add_(at::mm(a, b));
  }
}

Head head_chunks(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& target,
                 const CrossEntropyOptions& o, int64_t chunk, Wanted wanted) {
  const int64_t T = x.size(0);
  const auto wide = x.options().dtype(wide_type(x));
  Head head{
      .loss = at::zeros({}, wide),
      .lse = at::empty({T}, wide),
      .grad_x = wanted.x ? at::empty_like(x, at::MemoryFormat::Contiguous) : at::Tensor(),
      .grad_weight = wanted.weight && T == 0 ? at::zeros(weight.sizes(), wide) : at::Tensor()};
  for (int64_t begin = 0; begin < T; begin += chunk) {
    const int64_t n = std::min(chunk, T - begin);
    const at::Tensor rows = x.narrow(0, begin, n), words = target.narrow(0, begin, n);
    const Optional w =
        o.weight_T.has_value() ? Optional(o.weight_T->narrow(0, begin, n)) : Optional();
    const at::Tensor logits = at::matmul(rows, weight.t());
    const auto [loss, lse] = cross_entropy_device(logits, words, w, o.z_loss, o.ignore);
    head.loss += loss.sum();
    head.lse.narrow(0, begin, n).copy_(lse);
    if (!wanted.x && !wanted.weight) continue;
    gradient_into(logits, at::ones({1}, wide).expand({n}), {logits, words, lse}, w, o.z_loss,
                  o.ignore);
    if (wanted.x) {
      at::Tensor to = head.grad_x.narrow(0, begin, n);
      at::mm_out(to, logits, weight);
    }
    if (wanted.weight) add_product(head.grad_weight, logits.t(), rows, wide_type(x));
  }
  return head;
}

}  // namespace

std::pair<at::Tensor, at::Tensor> cross_entropy(const at::Tensor& logits_TV,
                                                const at::Tensor& target_T,
                                                const CrossEntropyOptions& o) {
  const auto [loss, lse] = cross_entropy_op(logits_TV, target_T, o.weight_T, o.z_loss, o.ignore);
  return {loss, lse};
}

std::pair<at::Tensor, at::Tensor> linear_cross_entropy(const at::Tensor& x_TD,
                                                       const at::Tensor& weight_VD,
                                                       const at::Tensor& target_T,
                                                       const CrossEntropyOptions& o,
                                                       int64_t chunk) {
  check_sizes(x_TD, {-1, -1}, "linear_cross_entropy: x");
  check_sizes(weight_VD, {-1, x_TD.size(1)}, "linear_cross_entropy: weight");
  check_dtype(weight_VD, x_TD.scalar_type(), "linear_cross_entropy: weight");
  TROUPE_CHECK(chunk > 0, "linear_cross_entropy: chunk must be positive; it is", chunk);
  const bool graph = wants_grad({x_TD, weight_VD});
  Head head;
  {
    const at::NoGradGuard no_grad;
    head = head_chunks(x_TD, weight_VD, target_T, o, chunk,
                       {graph && x_TD.requires_grad(), graph && weight_VD.requires_grad()});
  }
  record({.name = "linear_cross_entropy",
          .inputs = {x_TD, weight_VD},
          .outputs = {head.loss},
          .saved = {head.grad_x, head.grad_weight},
          .backward = [type = weight_VD.scalar_type()](const Gradients& g) -> TensorList {
            const auto scaled = [&](at::Tensor x) {
              const at::Tensor scale = g.outputs[0].to(x.scalar_type());
              return g.last ? x.mul_(scale) : x * scale;
            };
            return {g.needs[0] ? scaled(g.saved[0]) : at::Tensor(),
                    g.needs[1] ? scaled(g.saved[1]).to(type) : at::Tensor()};
          }});
  return {head.loss, head.lse};
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m,
         "cross_entropy(Tensor logits, Tensor target, Tensor? weight=None, float z_loss=0., "
         "int ignore=-100) "
         "-> (Tensor, Tensor)",
         cross_entropy_device, cross_entropy_meta, cross_entropy_op);
  define(m,
         "cross_entropy_backward(Tensor grad_loss, Tensor logits, Tensor target, Tensor lse, "
         "Tensor? weight, float z_loss, int ignore) -> Tensor",
         cross_entropy_backward_device, cross_entropy_backward_meta);
}

}  // namespace troupe
