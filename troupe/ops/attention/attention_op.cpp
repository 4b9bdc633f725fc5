// torch.ops.troupe.attention: causal attention of B sequences on the CPU (attention_cpu.h), for
// models of other libraries. q [B, S, H, d], k [B, P, G, d], v [B, P, G, e] with P >= S: query i of
// a sequence sees its first P - S + i + 1 keys, as where S tokens follow P - S earlier ones; query
// head h reads key head h G / H. Returns out [B, S, H, e] and lse [H, B S]. Heads that are side by
// side are read in place. Every number of threads gives the same bits.
#include <ATen/ops/empty.h>

#include <tuple>

#include "troupe/ops/attention/attention_cpu.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using AttentionOut = std::tuple<at::Tensor, at::Tensor>;
using AttentionGrads = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

AttentionOut attention_meta(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            double /*scale*/) {
  check_sizes(q, {-1, -1, -1, -1}, "attention: q");
  check_sizes(k, {q.sym_size(0), -1, -1, q.sym_size(3)}, "attention: k");
  check_sizes(v, {q.sym_size(0), k.sym_size(1), k.sym_size(2), -1}, "attention: v");
  TROUPE_CHECK(q.scalar_type() == at::kFloat || q.scalar_type() == at::kDouble,
               "attention: q must be f32 or f64; it is", q.scalar_type());
  for (const at::Tensor& t : {k, v}) {
    check_dtype(t, q.scalar_type(), "attention: k and v");
    check_same_device(t, q, "attention: k and v");
  }
  TROUPE_CHECK(k.sym_size(2) > 0 && q.sym_size(2) % k.sym_size(2) == 0, "attention:", q.sym_size(2),
               "query heads must be a multiple of the key heads; they are", k.sym_size(2));
  TROUPE_CHECK(k.sym_size(1) >= q.sym_size(1), "attention: a sequence must have a key for each of",
               q.sym_size(1), "queries; it has", k.sym_size(1));
  const c10::SymInt B = q.sym_size(0), S = q.sym_size(1), H = q.sym_size(2);
  return {at::empty_symint({B, S, H, v.sym_size(3)}, q.options()),
          at::empty_symint({H, B * S}, q.options())};
}

// [B, S, H, d] as rows of tokens whose heads are side by side; a copy where they are not.
at::Tensor sequence_rows(const at::Tensor& x) {
  return rowwise(x.reshape({x.size(0) * x.size(1), x.size(2) * x.size(3)}));
}

template <class T>
HeadRows<const T> op_heads(const at::Tensor& rows) {
  return {rows.const_data_ptr<T>(), rows.stride(0)};
}
template <class T>
HeadRows<T> op_grad_heads(const at::Tensor& x) {  // contiguous
  return {x.mutable_data_ptr<T>(), x.size(2) * x.size(3)};
}

// The three arguments as rows: they live as long as a problem over them.
struct OpRows {
  at::Tensor q, k, v;
};

template <class T>
AttentionProblem<T> op_problem(const OpRows& rows, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, double scale) {
  const int64_t B = q.size(0), S = q.size(1), P = k.size(1);
  AttentionProblem<T> p{.heads = q.size(2),
                        .kv_heads = k.size(2),
                        .key_dim = q.size(3),
                        .value_dim = v.size(3),
                        .scale = scale,
                        .window = 0,
                        .segments = {},
                        .tokens = B * S,
                        .q = op_heads<T>(rows.q),
                        .k = op_heads<T>(rows.k),
                        .v = op_heads<T>(rows.v)};
  for (int64_t b = 0; b < B; ++b) p.segments.push_back({b * S, S, b * P, P - S});
  return p;
}

template <class F>
void of_cpu_type(const at::Tensor& x, F&& f) {
  TROUPE_CHECK(x.is_cpu(), "attention: q must be on the cpu; it is on", x.device().str());
  if (x.scalar_type() == at::kDouble) return f.template operator()<double>();
  f.template operator()<float>();
}

AttentionOut attention_device(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              double scale) {
  auto [out, lse] = attention_meta(q, k, v, scale);
  const OpRows rows{sequence_rows(q), sequence_rows(k), sequence_rows(v)};
  of_cpu_type(q, [&]<class T>() {
    attention_forward_cpu<T>(op_problem<T>(rows, q, k, v, scale), out.mutable_data_ptr<T>(),
                             lse.mutable_data_ptr<T>());
  });
  return {out, lse};
}

// LONG: a schema's arguments
AttentionGrads attention_backward_meta(const at::Tensor& grad_out, const at::Tensor& q,
                                       const at::Tensor& k, const at::Tensor& v,
                                       const at::Tensor& out, const at::Tensor& lse, double scale) {
  const auto [like_out, like_lse] = attention_meta(q, k, v, scale);
  const auto o = like_out.sym_sizes(), l = like_lse.sym_sizes();
  for (const at::Tensor& t : {grad_out, out}) {
    check_sizes(t, {o[0], o[1], o[2], o[3]}, "attention: out and its gradient");
    check_dtype(t, q.scalar_type(), "attention: out and its gradient");
    check_same_device(t, q, "attention: out and its gradient");
  }
  check_sizes(lse, {l[0], l[1]}, "attention: lse");
  check_dtype(lse, q.scalar_type(), "attention: lse");
  check_same_device(lse, q, "attention: lse");
  return {at::empty_symint(q.sym_sizes(), q.options()),
          at::empty_symint(k.sym_sizes(), q.options()),
          at::empty_symint(v.sym_sizes(), q.options())};
}

// LONG: a schema's arguments
AttentionGrads attention_backward_device(const at::Tensor& grad_out, const at::Tensor& q,
                                         const at::Tensor& k, const at::Tensor& v,
                                         const at::Tensor& out, const at::Tensor& lse,
                                         double scale) {
  auto [dq, dk, dv] = attention_backward_meta(grad_out, q, k, v, out, lse, scale);
  const OpRows rows{sequence_rows(q), sequence_rows(k), sequence_rows(v)};
  const at::Tensor o = out.contiguous(), l = lse.contiguous(), g = grad_out.contiguous();
  of_cpu_type(q, [&]<class T>() {
    attention_backward_cpu<T>(op_problem<T>(rows, q, k, v, scale),
                              {o.const_data_ptr<T>(), l.const_data_ptr<T>(), g.const_data_ptr<T>()},
                              {op_grad_heads<T>(dq), op_grad_heads<T>(dk), op_grad_heads<T>(dv)});
  });
  return {dq, dk, dv};
}

AttentionOut attention_op(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          double scale) {
  static const auto op = raw_op<decltype(attention_device)>("troupe::attention");
  static const auto backward =
      raw_op<decltype(attention_backward_device)>("troupe::attention_backward");
  auto [out, lse] = op(q, k, v, scale);
  record({.name = "attention",
          .inputs = {q, k, v},
          .outputs = {out},
          .saved = {q, k, v, out, lse},
          .backward = [scale](const Gradients& g) -> TensorList {
            const TensorList& s = g.saved;
            const auto [dq, dk, dv] = backward(g.outputs[0], s[0], s[1], s[2], s[3], s[4], scale);
            return {dq, dk, dv};
          }});
  return {out, lse};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define(m, "attention(Tensor q, Tensor k, Tensor v, float scale) -> (Tensor out, Tensor lse)",
         attention_device, attention_meta, attention_op);
  define(m,
         "attention_backward(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor out, Tensor "
         "lse, float scale) -> (Tensor, Tensor, Tensor)",
         attention_backward_device, attention_backward_meta);
}

}  // namespace troupe
