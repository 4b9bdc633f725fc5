#include "troupe/ops/attention.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <numeric>

#include "troupe/kernels/rotary/rotary.h"
#include "troupe/ops/attention_cpu.h"
#include "troupe/ops/attention_sdpa.h"
#include "troupe/ops/autograd.h"
#include "troupe/ops/run.h"
#include "troupe/ops/view.h"

namespace troupe {
namespace {

int64_t segments_of(const AttentionForm& form) {
  return static_cast<int64_t>(form.lengths.size());
}

void check(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionForm& f) {
  check_sizes(q, {-1, -1, -1}, "attention: q");
  check_sizes(k, {-1, -1, q.size(2)}, "attention: k");
  check_sizes(v, {k.size(0), k.size(1), -1}, "attention: v");
  check_dtype(k, q.scalar_type(), "attention: k");
  check_dtype(v, q.scalar_type(), "attention: v");
  check_same_device(k, q, "attention: k");
  check_same_device(v, q, "attention: v");
  TROUPE_CHECK(k.size(1) > 0 && q.size(1) % k.size(1) == 0, "attention:", k.size(1),
               "key heads must divide", q.size(1), "query heads");
  const int64_t T = std::accumulate(f.lengths.begin(), f.lengths.end(), int64_t{0});
  TROUPE_CHECK(T == q.size(0) && k.size(0) == T + f.past * segments_of(f),
               "attention: segments hold", T, "queries and", T + f.past * segments_of(f),
               "keys; q has", q.size(0), "and k", k.size(0));
  TROUPE_CHECK(f.window >= 0 && f.past >= 0, "attention: window", f.window, "past", f.past);
  if (!f.sinks_H) return;
  check_sizes(*f.sinks_H, {q.size(1)}, "attention: sinks");
  check_dtype(*f.sinks_H, q.scalar_type(), "attention: sinks");
}

// Rows whose heads lie side by side, as the CPU path reads them.
at::Tensor head_rows(const at::Tensor& x) {
  const bool fits = x.stride(2) == 1 && (x.size(1) == 1 || x.stride(1) == x.size(2));
  return fits ? x : x.contiguous();
}

template <class T>
HeadRows<const T> rows(const at::Tensor& x) {
  return {x.const_data_ptr<T>(), x.stride(0)};
}
template <class T>
HeadRows<T> mut_rows(const at::Tensor& x) {
  return {x.mutable_data_ptr<T>(), x.stride(0)};
}

template <class T>
AttentionProblem<T> problem(const TensorList& qkv, const AttentionForm& f) {
  AttentionProblem<T> p{.heads = qkv[0].size(1),
                        .kv_heads = qkv[1].size(1),
                        .key_dim = qkv[0].size(2),
                        .value_dim = qkv[2].size(2),
                        .scale = f.scale,
                        .window = f.window,
                        .segments = {},
                        .tokens = qkv[0].size(0),
                        .q = rows<T>(qkv[0]),
                        .k = rows<T>(qkv[1]),
                        .v = rows<T>(qkv[2]),
                        .sinks = ptr_or_null<const T>(f.sinks_H, "attention: sinks")};
  int64_t q = 0, k = 0;
  for (const int64_t n : f.lengths) {
    if (n > 0) p.segments.push_back({q, n, k, f.past});
    q += n;
    k += n + f.past;
  }
  return p;
}

template <class F>
void dispatch(const at::Tensor& x, F&& f) {
  if (x.scalar_type() == at::kDouble) return f.template operator()<double>();
  TROUPE_CHECK(x.scalar_type() == at::kFloat, "attention: on the CPU in f32 and f64, not",
               x.scalar_type());
  f.template operator()<float>();
}

struct Result {
  at::Tensor out, lse;
};

// qkv = [q, k, v], rows as head_rows gives them.
Result forward(const TensorList& qkv, const AttentionForm& form) {
  const int64_t T = qkv[0].size(0), H = qkv[0].size(1);
  const auto options = qkv[0].options().requires_grad(false);
  Result r{at::empty({T, H, qkv[2].size(2)}, options), at::empty({H, T}, options)};
  dispatch(qkv[0], [&]<class W>() {
    attention_forward_cpu<W>(problem<W>(qkv, form), r.out.mutable_data_ptr<W>(),
                             r.lse.mutable_data_ptr<W>());
  });
  return r;
}

// grads = [q, k, v], written; returns the sinks' gradient, undefined without sinks.
at::Tensor backward(const TensorList& qkv, const AttentionForm& form, const Result& r,
                    const at::Tensor& grad_out, const TensorList& grads) {
  const at::Tensor dense = grad_out.contiguous();
  const at::Tensor sinks =
      form.sinks_H ? at::zeros(form.sinks_H->sizes(), r.out.options()) : at::Tensor();
  dispatch(qkv[0], [&]<class W>() {
    AttentionGradients<W> to{mut_rows<W>(grads[0]), mut_rows<W>(grads[1]), mut_rows<W>(grads[2])};
    if (sinks.defined()) to.sinks = sinks.mutable_data_ptr<W>();
    attention_backward_cpu<W>(
        problem<W>(qkv, form),
        {r.out.const_data_ptr<W>(), r.lse.const_data_ptr<W>(), dense.const_data_ptr<W>()}, to);
  });
  return sinks;
}

at::Tensor sinks_or_none(const AttentionForm& form) {
  return form.sinks_H.value_or(at::Tensor());
}

// The form without the sinks' graph, for a backward that gets them as a saved tensor.
AttentionForm plain(const AttentionForm& form) {
  AttentionForm f = form;
  f.sinks_H.reset();
  return f;
}
AttentionForm with_sinks(AttentionForm form, const at::Tensor& sinks) {
  if (sinks.defined()) form.sinks_H = sinks;
  return form;
}

TensorList parts(const at::Tensor& qkv_TN, const PackedHeads& n) {
  const int64_t T = qkv_TN.size(0), d = n.dim, q = n.heads * d, kv = n.kv_heads * d;
  return {qkv_TN.narrow(1, 0, q).view({T, n.heads, d}),
          qkv_TN.narrow(1, q, kv).view({T, n.kv_heads, d}),
          qkv_TN.narrow(1, q + kv, kv).view({T, n.kv_heads, d})};
}

// Turns queries and keys where they lie.
void turn(const at::Tensor& qkv_TN, const PackedHeads& n, const PackedRotary& r, int64_t length,
          bool inverse) {
  if (qkv_TN.size(0) == 0) return;
  const at::Tensor heads = qkv_TN.narrow(1, 0, (n.heads + n.kv_heads) * n.dim);
  const int64_t P = r.position_T ? r.tables.cos.size(0) : length;
  const at::Tensor cos = r.tables.cos.narrow(0, 0, P), sin = r.tables.sin.narrow(0, 0, P);
  Rotary args{.x = view(heads, "attention: qkv"),
              .y = mut_view(heads, "attention: qkv"),
              .cos = view(cos, "attention: cos"),
              .sin = view(sin, "attention: sin"),
              .head_dim = n.dim,
              .position = ptr_or_null<const int64_t>(r.position_T, "attention: position"),
              .first = r.options.first,
              .form = r.options.interleaved ? RotaryForm::kInterleaved : RotaryForm::kHalf,
              .inverse = inverse};
  run(qkv_TN.device(), args, rotary_cpu, &CudaKernels::rotary);
}

void check_packed(const at::Tensor& qkv, const PackedHeads& n,
                  const std::optional<PackedRotary>& rotary, const AttentionForm& form) {
  check_sizes(qkv, {-1, (n.heads + 2 * n.kv_heads) * n.dim}, "attention: qkv");
  TROUPE_CHECK(qkv.is_contiguous(), "attention: qkv must be contiguous");
  const TensorList p = parts(qkv.detach(), n);
  check(p[0], p[1], p[2], form);
  TROUPE_CHECK(form.past == 0, "attention: a joint product has no past");
  if (!rotary) return;
  if (rotary->position_T)
    return check_sizes(*rotary->position_T, {qkv.size(0)}, "attention: position");
  for (const int64_t length : form.lengths) {
    TROUPE_CHECK(length == form.lengths[0] && length <= rotary->tables.cos.size(0),
                 "attention: a segment of", length, "beside one of", form.lengths[0],
                 "needs positions, and tables of so many rows; they have",
                 rotary->tables.cos.size(0));
  }
}

at::Tensor attention_f32(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const AttentionForm& form) {
  const at::Tensor sinks = sinks_or_none(form);
  TensorList qkv = {head_rows(q), head_rows(k), head_rows(v)};
  Result r;
  {
    const at::NoGradGuard no_grad;
    r = forward({qkv[0].detach(), qkv[1].detach(), qkv[2].detach()}, form);
  }
  record({.name = "attention",
          .inputs = {q, k, v, sinks},
          .outputs = {r.out},
          .saved = {qkv[0], qkv[1], qkv[2], r.out, r.lse, sinks},
          .backward = [f = plain(form)](const Gradients& g) -> TensorList {
            const TensorList saved = {g.saved[0], g.saved[1], g.saved[2]};
            TensorList grads;
            for (const at::Tensor& x : saved) grads.push_back(at::empty(x.sizes(), x.options()));
            const at::Tensor sink = backward(saved, with_sinks(f, g.saved[5]),
                                             {g.saved[3], g.saved[4]}, g.outputs[0], grads);
            return {grads[0], grads[1], grads[2], sink};
          }});
  return r.out;
}

at::Tensor packed_f32(const at::Tensor& qkv_TN, const PackedHeads& heads,
                      const std::optional<PackedRotary>& rotary, const AttentionForm& form) {
  const at::Tensor sinks = sinks_or_none(form), own = qkv_TN.detach();
  const int64_t length = form.lengths.empty() ? 0 : form.lengths[0];
  Result r;
  {
    const at::NoGradGuard no_grad;
    if (rotary) turn(own, heads, *rotary, length, /*inverse=*/false);
    r = forward(parts(own, heads), form);
  }
  record({.name = "packed_attention",
          .inputs = {qkv_TN, sinks},
          .outputs = {r.out},
          .saved = {own, r.out, r.lse, sinks},
          .backward = [f = plain(form), heads, rotary, length](const Gradients& g) -> TensorList {
            const at::Tensor grad = at::empty(g.saved[0].sizes(), g.saved[0].options());
            const at::Tensor sink =
                backward(parts(g.saved[0], heads), with_sinks(f, g.saved[3]),
                         {g.saved[1], g.saved[2]}, g.outputs[0], parts(grad, heads));
            if (rotary) turn(grad, heads, *rotary, length, /*inverse=*/true);
            return {grad, sink};
          }});
  return r.out;
}

bool narrow_on_cpu(const at::Tensor& x) {
  return x.is_cpu() && (x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf);
}

AttentionForm widened(AttentionForm form) {
  if (form.sinks_H) form.sinks_H = form.sinks_H->to(at::kFloat);
  return form;
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const AttentionForm& form) {
  check(q, k, v, form);
  if (!q.is_cpu()) return attention_sdpa(q, k, v, form);
  if (!narrow_on_cpu(q)) return attention_f32(q, k, v, form);
  return attention_f32(q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat), widened(form))
      .to(q.scalar_type());
}

at::Tensor packed_attention(const at::Tensor& qkv_TN, const PackedHeads& heads,
                            const std::optional<PackedRotary>& rotary, const AttentionForm& form) {
  check_packed(qkv_TN, heads, rotary, form);
  if (qkv_TN.is_cpu() && !narrow_on_cpu(qkv_TN)) return packed_f32(qkv_TN, heads, rotary, form);
  if (qkv_TN.is_cpu()) {
    return packed_f32(qkv_TN.to(at::kFloat), heads, rotary, widened(form)).to(qkv_TN.scalar_type());
  }
  TensorList p = parts(qkv_TN, heads);
  if (rotary) {
    const int64_t length = form.lengths.empty() ? 0 : form.lengths[0];
    RotaryTables tables = rotary->tables;
    std::optional<at::Tensor> position = rotary->position_T;
    const auto turned = [&](const at::Tensor& x) {
      if (position || length == 0) return troupe::rotary(x, tables, position, rotary->options);
      const std::vector<int64_t> rows = {x.size(0) / length, length, x.size(1), x.size(2)};
      return troupe::rotary(x.unflatten(0, {rows[0], length}), tables, position, rotary->options)
          .view(x.sizes());
    };
    p = {turned(p[0]), turned(p[1]), p[2]};
  }
  return attention_sdpa(p[0], p[1], p[2], form);
}

}  // namespace troupe
