#include "troupe/ops/attention/attention.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <array>
#include <numeric>
#include <tuple>

#include "troupe/kernels/norm/norm.h"
#include "troupe/kernels/rotary/rotary.h"
#include "troupe/ops/attention/attention_cpu.h"
#include "troupe/ops/attention/attention_cudnn.h"
#include "troupe/ops/attention/attention_sdpa.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

int64_t segments_of(const AttentionForm& form) {
  return static_cast<int64_t>(form.lengths.size());
}

// Each query once, and keys that ascend: backward adds up those of neighbors alone.
void check_segments(const AttentionForm& f, int64_t queries, int64_t keys) {
  TROUPE_CHECK(f.lengths.empty() && f.past == 0,
               "attention: a form has segments, or lengths and a past");
  int64_t next = 0, key = 0;
  for (const AttentionSegment& s : f.segments) {
    TROUPE_CHECK(s.q == next && s.rows > 0 && s.past >= 0 && s.keys == s.past + s.rows &&
                     s.k >= key && s.k + s.keys <= keys,
                 "attention: a segment of queries", s.q, "to", s.q + s.rows, "behind a past of",
                 s.past, "and keys", s.k, "to", s.k + s.keys, "of", keys, "behind query", next,
                 "and key", key);
    next += s.rows;
    key = s.k;
  }
  TROUPE_CHECK(next == queries, "attention: segments hold", next, "queries; q has", queries);
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
  TROUPE_CHECK(f.window >= 0 && f.past >= 0, "attention: window", f.window, "past", f.past);
  if (f.segments.empty()) {
    const int64_t T = std::accumulate(f.lengths.begin(), f.lengths.end(), int64_t{0});
    TROUPE_CHECK(T == q.size(0) && k.size(0) == T + f.past * segments_of(f),
                 "attention: segments hold", T, "queries and", T + f.past * segments_of(f),
                 "keys; q has", q.size(0), "and k", k.size(0));
  } else {
    check_segments(f, q.size(0), k.size(0));
  }
  if (!f.sinks_H) return;
  check_sizes(*f.sinks_H, {q.size(1)}, "attention: sinks");
  check_dtype(*f.sinks_H, q.scalar_type(), "attention: sinks");
}

// Rows whose heads are side by side, as the CPU path reads them.
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
                        .segments = f.segments,
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

// Queries and keys of one matrix, which may be the joint product too, and the product's values.
TensorList parts(const at::Tensor& qk, const at::Tensor& qkv_TN, const PackedHeads& n) {
  const int64_t T = qkv_TN.size(0), d = n.dim, q = n.heads * d, kv = n.kv_heads * d;
  return {qk.narrow(1, 0, q).view({T, n.heads, d}), qk.narrow(1, q, kv).view({T, n.kv_heads, d}),
          qkv_TN.narrow(1, q + kv, kv).view({T, n.kv_heads, d})};
}
TensorList parts(const at::Tensor& qkv_TN, const PackedHeads& n) {
  return parts(qkv_TN, qkv_TN, n);
}

// Some columns of a matrix, without a tensor's cost.
MutRef columns(const at::Tensor& x, int64_t first, int64_t n) {
  MutRef out = mut_view(x, "attention: qkv");
  out.data = static_cast<char*>(out.data) + first * size_bytes(out.dtype);
  out.cols = n;
  return out;
}

// Turns queries and keys where they are.
void turn(const at::Tensor& qkv_TN, const PackedHeads& n, const PackedRotary& r, int64_t length,
          bool inverse) {
  if (qkv_TN.size(0) == 0) return;
  const MutRef heads = columns(qkv_TN, 0, (n.heads + n.kv_heads) * n.dim);
  Rotary args{.x = heads.read(),
              .y = heads,
              .cos = view(r.tables.cos, "attention: cos"),
              .sin = view(r.tables.sin, "attention: sin"),
              .head_dim = n.dim,
              .position = ptr_or_null<const int64_t>(r.position_T, "attention: position"),
              .first = r.options.first,
              .form = r.options.interleaved ? RotaryForm::kInterleaved : RotaryForm::kHalf,
              .inverse = inverse};
  if (!r.position_T) args.cos.rows = args.sin.rows = length;  // counted modulo the table
  run(qkv_TN.device(), args, rotary_cpu, &CudaKernels::rotary);
}

// The columns that one norm is taken of: those of all queries or all keys, or of each head.
struct NormPiece {
  int64_t first, width;
  const at::Tensor& weight_D;
};
std::vector<NormPiece> norm_pieces(const PackedNorm& norm, const PackedHeads& n) {
  std::vector<NormPiece> out;
  int64_t first = 0;
  for (const auto& [weight, heads] :
       {std::tie(norm.q_weight, n.heads), std::tie(norm.k_weight, n.kv_heads)}) {
    const int64_t end = first + heads * n.dim, width = weight.size(0);
    for (; first < end; first += width) out.push_back({first, width, weight});
  }
  return out;
}

// Queries and keys as the products take them, and what the norms' backward reads, a column a norm.
struct Heads {
  at::Tensor qk_TN, mean_TP, rstd_TP;
};

Heads normed(const at::Tensor& qkv_TN, const PackedHeads& n, const PackedNorm& norm) {
  const int64_t T = qkv_TN.size(0);
  const std::vector<NormPiece> pieces = norm_pieces(norm, n);
  const NamedNorm form = named_norm(norm.options.kind);
  const auto P = static_cast<int64_t>(pieces.size());
  Heads out{at::empty({T, (n.heads + n.kv_heads) * n.dim}, qkv_TN.options()),
            at::empty({T, P}, qkv_TN.options()), at::empty({T, P}, qkv_TN.options())};
  for (int64_t p = 0; p < P; ++p) {
    const auto& [first, width, weight] = pieces[p];
    const at::Tensor w = weight.unsqueeze(0);
    const Norm args{.x = columns(qkv_TN, first, width).read(),
                    .weight = view(w, "attention: norm"),
                    .y = columns(out.qk_TN, first, width),
                    .mean = form.kind == NormKind::kLayer ? columns(out.mean_TP, p, 1) : MutRef{},
                    .rstd = columns(out.rstd_TP, p, 1),
                    .kind = form.kind,
                    .eps = static_cast<float>(norm.options.eps),
                    .round_before_weight = form.round};
    norm_cpu(args, torch_pool());
  }
  return out;
}

// From the gradient of what came out of the norms, in `grad_TN`, to that of what went in, in the
// same place; returns the weights' gradients, of the queries' and the keys' norm.
std::array<at::Tensor, 2> norms_backward(const at::Tensor& qkv_TN, const PackedHeads& n,
                                         const PackedNorm& norm, const Heads& heads,
                                         const at::Tensor& grad_TN) {
  const std::vector<NormPiece> pieces = norm_pieces(norm, n);
  const NamedNorm form = named_norm(norm.options.kind);
  const bool layer = form.kind == NormKind::kLayer;
  std::array<at::Tensor, 2> out;
  for (size_t p = 0; p < pieces.size(); ++p) {
    const auto& [first, width, weight] = pieces[p];
    const auto column = static_cast<int64_t>(p);
    const MutRef g = columns(grad_TN, first, width);
    const at::Tensor w = weight.unsqueeze(0);
    const at::Tensor grad_weight = at::empty({1, width}, qkv_TN.options());
    NormBackward args{.s = columns(qkv_TN, first, width).read(),
                      .weight = view(w, "attention: norm"),
                      .rstd = columns(heads.rstd_TP, column, 1).read(),
                      .grad_y = g.read(),
                      .grad_s = g,
                      .grad_weight = mut_view(grad_weight, "attention: gradient"),
                      .mean = layer ? columns(heads.mean_TP, column, 1).read() : MatRef{},
                      .kind = form.kind,
                      .round_before_weight = form.round};
    const at::Tensor workspace =
        at::empty({workspace_bytes(args)}, qkv_TN.options().dtype(at::kByte));
    args.workspace = workspace.mutable_data_ptr();
    norm_backward_cpu(args, torch_pool());
    at::Tensor& sum = out[first < n.heads * n.dim ? 0 : 1];
    sum = sum.defined() ? sum.add_(grad_weight.squeeze(0)) : grad_weight.squeeze(0);
  }
  return out;
}

void check_packed(const at::Tensor& qkv, const PackedForm& packed, const AttentionForm& form) {
  const auto& [n, norm, rotary] = packed;
  check_sizes(qkv, {-1, (n.heads + 2 * n.kv_heads) * n.dim}, "attention: qkv");
  TROUPE_CHECK(qkv.is_contiguous(), "attention: qkv must be contiguous");
  const TensorList p = parts(qkv.detach(), n);
  check(p[0], p[1], p[2], form);
  TROUPE_CHECK(form.past == 0 && form.segments.empty(), "attention: a joint product has no past");
  if (norm) {
    const int64_t q = norm->q_weight.numel(), k = norm->k_weight.numel();
    const bool whole = q == n.heads * n.dim && k == n.kv_heads * n.dim;
    TROUPE_CHECK(norm->q_weight.dim() == 1 && norm->k_weight.dim() == 1 &&
                     (whole || (q == n.dim && k == n.dim)),
                 "attention: norms of", n.heads, "and", n.kv_heads, "heads of", n.dim,
                 "have weights of all of them or of one; they are", norm->q_weight.sizes(), "and",
                 norm->k_weight.sizes());
    check_dtype(norm->q_weight, qkv.scalar_type(), "attention: norm");
    check_dtype(norm->k_weight, qkv.scalar_type(), "attention: norm");
  }
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

// Keys that no segment has get no gradient.
at::Tensor gradient_like(const at::Tensor& x, const AttentionForm& form) {
  return form.segments.empty() ? at::empty(x.sizes(), x.options())
                               : at::zeros(x.sizes(), x.options());
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
            for (const at::Tensor& x : saved) grads.push_back(gradient_like(x, f));
            const at::Tensor sink = backward(saved, with_sinks(f, g.saved[5]),
                                             {g.saved[3], g.saved[4]}, g.outputs[0], grads);
            return {grads[0], grads[1], grads[2], sink};
          }});
  return r.out;
}

// Keys and values of one matrix.
TensorList keys_values(const at::Tensor& kv_PN, int64_t G, int64_t d) {
  const int64_t P = kv_PN.size(0), keys = G * d, values = kv_PN.size(1) - keys;
  return {kv_PN.narrow(1, 0, keys).view({P, G, d}),
          kv_PN.narrow(1, keys, values).view({P, G, values / G})};
}

at::Tensor joined_f32(const at::Tensor& q_THd, const at::Tensor& kv_PN, int64_t G,
                      const AttentionForm& form) {
  const at::Tensor sinks = sinks_or_none(form), q = head_rows(q_THd);
  const int64_t d = q.size(2);
  Result r;
  {
    const at::NoGradGuard no_grad;
    const TensorList kv = keys_values(kv_PN.detach(), G, d);
    r = forward({q.detach(), kv[0], kv[1]}, form);
  }
  record({.name = "joined_attention",
          .inputs = {q_THd, kv_PN, sinks},
          .outputs = {r.out},
          .saved = {q, kv_PN, r.out, r.lse, sinks},
          .backward = [f = plain(form), G, d](const Gradients& g) -> TensorList {
            const TensorList kv = keys_values(g.saved[1], G, d);
            const at::Tensor grad_q = at::empty(g.saved[0].sizes(), g.saved[0].options()),
                             grad_kv = gradient_like(g.saved[1], f);
            const TensorList to = keys_values(grad_kv, G, d);
            const at::Tensor sink =
                backward({g.saved[0], kv[0], kv[1]}, with_sinks(f, g.saved[4]),
                         {g.saved[2], g.saved[3]}, g.outputs[0], {grad_q, to[0], to[1]});
            return {grad_q, grad_kv, sink};
          }});
  return r.out;
}

int64_t first_length(const AttentionForm& form) {
  return form.lengths.empty() ? 0 : form.lengths[0];
}

// What attention reads of a joint product: its own memory, or with a norm memory apart.
Heads prepared(const at::Tensor& qkv_TN, const PackedForm& packed, const AttentionForm& form) {
  Heads out = packed.norm ? normed(qkv_TN, packed.heads, *packed.norm) : Heads{qkv_TN, {}, {}};
  if (packed.rotary) {
    turn(out.qk_TN, packed.heads, *packed.rotary, first_length(form), /*inverse=*/false);
  }
  return out;
}

TensorList packed_backward(const Gradients& g, const PackedForm& packed,
                           const AttentionForm& form) {
  const at::Tensor &qkv = g.saved[0], &q_weight = g.saved[4], &k_weight = g.saved[5];
  PackedForm own = packed;
  Heads heads{qkv, {}, {}};  // without a norm they were turned where they were
  if (own.norm) {
    own.norm->q_weight = q_weight;
    own.norm->k_weight = k_weight;
    heads = prepared(qkv, own, form);
  }
  const at::Tensor grad = at::empty(qkv.sizes(), qkv.options());
  const at::Tensor sink =
      backward(parts(heads.qk_TN, qkv, packed.heads), with_sinks(form, g.saved[3]),
               {g.saved[1], g.saved[2]}, g.outputs[0], parts(grad, packed.heads));
  if (packed.rotary) {
    turn(grad, packed.heads, *packed.rotary, first_length(form), /*inverse=*/true);
  }
  std::array<at::Tensor, 2> weights;
  if (own.norm) weights = norms_backward(qkv, packed.heads, *own.norm, heads, grad);
  return {grad, sink, weights[0], weights[1]};
}

at::Tensor packed_f32(const at::Tensor& qkv_TN, const PackedForm& packed,
                      const AttentionForm& form) {
  const at::Tensor sinks = sinks_or_none(form), own = qkv_TN.detach();
  const at::Tensor q_weight = packed.norm ? packed.norm->q_weight : at::Tensor();
  const at::Tensor k_weight = packed.norm ? packed.norm->k_weight : at::Tensor();
  Result r;
  {
    const at::NoGradGuard no_grad;
    r = forward(parts(prepared(own, packed, form).qk_TN, own, packed.heads), form);
  }
  PackedForm kept = packed;  // its weights come as saved tensors
  if (kept.norm) kept.norm->q_weight = kept.norm->k_weight = at::Tensor();
  record({.name = "packed_attention",
          .inputs = {qkv_TN, sinks, q_weight, k_weight},
          .outputs = {r.out},
          .saved = {own, r.out, r.lse, sinks, q_weight, k_weight},
          .backward = [f = plain(form), kept](const Gradients& g) {
            return packed_backward(g, kept, f);
          }});
  return r.out;
}

// The same of operators, each with its gradient.
at::Tensor packed_by_parts(const at::Tensor& qkv_TN, const PackedForm& packed,
                           const AttentionForm& form) {
  const auto& [n, norm, rotary] = packed;
  const int64_t q = n.heads * n.dim, kv = n.kv_heads * n.dim, length = first_length(form);
  TensorList p = qkv_TN.split_with_sizes({q, kv, kv}, 1);
  const auto prepare = [&, &norm = norm, &rotary = rotary](at::Tensor x, const at::Tensor& weight) {
    const bool each = norm && weight.size(0) != x.size(1);
    if (norm && !each) x = troupe::norm(x, weight, {}, norm->options);
    x = x.unflatten(1, {-1, n.dim});
    if (each) x = troupe::norm(x, weight, {}, norm->options);
    if (!rotary) return x;
    const auto& [tables, position, options] = *rotary;
    if (position || length == 0) return troupe::rotary(x, tables, position, options);
    return troupe::rotary(x.unflatten(0, {-1, length}), tables, position, options).flatten(0, 1);
  };
  const at::Tensor none;
  return attention(prepare(p[0], norm ? norm->q_weight : none),
                   prepare(p[1], norm ? norm->k_weight : none), p[2].unflatten(1, {-1, n.dim}),
                   form);
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
  if (!q.is_cpu()) {
    return fits_cudnn(q, v, form) ? attention_cudnn(q, k, v, form) : attention_sdpa(q, k, v, form);
  }
  if (!narrow_on_cpu(q)) return attention_f32(q, k, v, form);
  return attention_f32(q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat), widened(form))
      .to(q.scalar_type());
}

at::Tensor joined_attention(const at::Tensor& q, const at::Tensor& kv, int64_t kv_heads,
                            const AttentionForm& form) {
  check_sizes(kv, {-1, -1}, "attention: kv");
  TROUPE_CHECK(q.dim() == 3 && kv_heads > 0 && kv.size(1) % kv_heads == 0 &&
                   kv.size(1) > kv_heads * q.size(2) && kv.is_contiguous(),
               "attention: kv of", kv.sizes(), "for", kv_heads, "heads beside queries of",
               q.sizes());
  const TensorList apart = keys_values(kv, kv_heads, q.size(2));
  check(q, apart[0], apart[1], form);
  if (q.size(2) % 8 == 0 && apart[1].size(2) % 8 == 0 && fits_cudnn(q, apart[1], form)) {
    return joined_attention_cudnn(q, kv, kv_heads, form);
  }
  if (!q.is_cpu() || narrow_on_cpu(q)) return attention(q, apart[0], apart[1], form);
  return joined_f32(q, kv, kv_heads, form);
}

at::Tensor packed_attention(const at::Tensor& qkv_TN, const PackedForm& packed,
                            const AttentionForm& form) {
  check_packed(qkv_TN, packed, form);
  if (!qkv_TN.is_cpu() || (packed.norm && narrow_on_cpu(qkv_TN))) {
    return packed_by_parts(qkv_TN, packed, form);
  }
  if (!narrow_on_cpu(qkv_TN)) return packed_f32(qkv_TN, packed, form);
  return packed_f32(qkv_TN.to(at::kFloat), packed, widened(form)).to(qkv_TN.scalar_type());
}

}  // namespace troupe
