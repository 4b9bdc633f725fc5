#include "troupe/ops/attention/attention_part.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>

#include <limits>

#include "troupe/core/check.h"
#include "troupe/ops/attention/attention_cpu.h"
#include "troupe/ops/attention/attention_part_aten.h"
#include "troupe/ops/attention/attention_part_cudnn.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

void check_part(const PartInputs& in, const PartForm& form) {
  const auto& [q, k, v] = in;
  check_sizes(q, {-1, -1, -1}, "attention_part: q");
  check_sizes(k, {-1, -1, q.size(2)}, "attention_part: k");
  check_sizes(v, {k.size(0), k.size(1), -1}, "attention_part: v");
  check_dtype(k, q.scalar_type(), "attention_part: k");
  check_dtype(v, q.scalar_type(), "attention_part: v");
  TROUPE_CHECK(k.size(1) > 0 && q.size(1) % k.size(1) == 0, "attention_part:", k.size(1),
               "key heads must divide", q.size(1), "query heads");
  int64_t query = 0, key = 0;
  for (const AttentionSegment& s : form.segments) {
    TROUPE_CHECK(s.q >= query && s.rows > 0 && s.q + s.rows <= q.size(0) && s.past >= 0 &&
                     s.k >= key && s.keys >= 0 && s.k + s.keys <= k.size(0),
                 "attention_part: a segment of queries", s.q, "to", s.q + s.rows, "and keys", s.k,
                 "to", s.k + s.keys, "of", q.size(0), "and", k.size(0), "behind query", query,
                 "and key", key);
    query = s.q + s.rows;
    key = s.k;
  }
}

// In the parts' type, heads of a row side by side.
PartInputs widened(const PartInputs& in) {
  const at::ScalarType wide = wide_type(in.q_THd);
  const auto heads = [&](const at::Tensor& x) {
    const at::Tensor y = x.detach().to(wide);
    const bool fits = y.stride(2) == 1 && (y.size(1) == 1 || y.stride(1) == y.size(2));
    return fits ? y : y.contiguous();
  };
  return {heads(in.q_THd), heads(in.k_PGd), heads(in.v_PGe)};
}

template <class F>
void dispatch_wide(const at::Tensor& x, F&& f) {
  if (x.scalar_type() == at::kDouble) return f.template operator()<double>();
  f.template operator()<float>();
}

template <class T>
HeadRows<const T> read_rows(const at::Tensor& x) {
  return {x.const_data_ptr<T>(), x.stride(0)};
}
template <class T>
HeadRows<T> write_rows(const at::Tensor& x) {
  return {x.mutable_data_ptr<T>(), x.stride(0)};
}

template <class T>
AttentionProblem<T> part_problem(const PartInputs& in, const PartForm& form) {
  return {.heads = in.q_THd.size(1),
          .kv_heads = in.k_PGd.size(1),
          .key_dim = in.q_THd.size(2),
          .value_dim = in.v_PGe.size(2),
          .scale = form.scale,
          .window = form.window,
          .segments = form.segments,
          .tokens = in.q_THd.size(0),
          .q = read_rows<T>(in.q_THd),
          .k = read_rows<T>(in.k_PGd),
          .v = read_rows<T>(in.v_PGe)};
}

}  // namespace

AttentionPart no_keys(const at::Tensor& q, int64_t value_dim,
                      const std::optional<at::Tensor>& sinks_H) {
  const at::NoGradGuard no_grad;
  const auto options = q.options().dtype(wide_type(q)).requires_grad(false);
  const int64_t T = q.size(0), H = q.size(1);
  AttentionPart out{at::zeros({T, H, value_dim}, options), at::full({H, T}, kNever, options)};
  if (sinks_H) out.lse_HT.copy_(sinks_H->detach().unsqueeze(1).expand({H, T}));
  return out;
}

AttentionPart attention_part(const PartInputs& in, const PartForm& form) {
  const at::NoGradGuard no_grad;
  check_part(in, form);
  AttentionPart out = no_keys(in.q_THd, in.v_PGe.size(2), {});
  if (part_fits_cudnn(in, form)) {
    part_by_cudnn(in, form, out);
    return out;
  }
  const PartInputs wide = widened(in);
  if (!wide.q_THd.is_cpu()) {
    part_by_aten(wide, form, out);
    return out;
  }
  dispatch_wide(wide.q_THd, [&]<class T>() {
    attention_forward_cpu<T>(part_problem<T>(wide, form), out.out_THe.mutable_data_ptr<T>(),
                             out.lse_HT.mutable_data_ptr<T>());
  });
  return out;
}

void join(AttentionPart& sum, const AttentionPart& part) {
  const at::NoGradGuard no_grad;
  const at::Tensor lse = at::logaddexp(sum.lse_HT, part.lse_HT);
  const auto weight_of = [&](const at::Tensor& part_lse) {  // 0 where neither has a key
    return at::exp(part_lse - lse.masked_fill(lse == kNever, 0));
  };
  const auto by_token = [](const at::Tensor& w_HT) { return w_HT.t().unsqueeze(2); };
  sum.out_THe.mul_(by_token(weight_of(sum.lse_HT)))
      .addcmul_(part.out_THe, by_token(weight_of(part.lse_HT)));
  sum.lse_HT = lse;
}

PartGradients attention_part_backward(const PartInputs& in, const PartForm& form,
                                      const AttentionPart& whole, const at::Tensor& grad_THe) {
  const at::NoGradGuard no_grad;
  check_part(in, form);
  check_sizes(grad_THe, {in.q_THd.size(0), in.q_THd.size(1), in.v_PGe.size(2)},
              "attention_part: gradient");
  check_dtype(grad_THe, wide_type(in.q_THd), "attention_part: gradient");
  if (part_fits_cudnn(in, form)) return part_backward_by_cudnn(in, form, whole, grad_THe);
  const PartInputs wide = widened(in);
  const auto zeros = [&](const at::Tensor& like) {
    return at::zeros(like.sizes(), like.options().requires_grad(false));
  };
  PartGradients out{zeros(wide.q_THd), zeros(wide.k_PGd), zeros(wide.v_PGe)};
  const at::Tensor grad = grad_THe.contiguous();
  if (!grad.is_cpu()) {
    part_backward_by_aten(wide, form, whole, grad, out);
    return out;
  }
  dispatch_wide(wide.q_THd, [&]<class T>() {
    attention_backward_cpu<T>(
        part_problem<T>(wide, form),
        {whole.out_THe.const_data_ptr<T>(), whole.lse_HT.const_data_ptr<T>(),
         grad.const_data_ptr<T>()},
        {write_rows<T>(out.q_THd), write_rows<T>(out.k_PGd), write_rows<T>(out.v_PGe)});
  });
  return out;
}

at::Tensor sinks_backward(const AttentionPart& whole, const at::Tensor& grad_THe,
                          const at::Tensor& sinks_H) {
  const at::NoGradGuard no_grad;
  const at::Tensor D = (grad_THe * whole.out_THe).sum(2).t();  // [H, T]
  const at::Tensor sinks = sinks_H.detach().to(whole.lse_HT.scalar_type()).unsqueeze(1);
  return (at::exp(sinks - whole.lse_HT) * D).sum(1).neg().to(sinks_H.scalar_type());
}

}  // namespace troupe
