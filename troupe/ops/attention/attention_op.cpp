// torch.ops.troupe.attention: causal attention of B sequences on the CPU (attention_cpu.h), for
// models of other libraries. q [B, S, H, d], k [B, P, G, d], v [B, P, G, e] with P >= S: query i of
// a sequence sees its first P - S + i + 1 keys, as where S tokens follow P - S earlier ones; query
// head h reads key head h G / H. Returns out [B, S, H, e] and lse [H, B S]. Heads that are side by
// side are read in place. Every number of threads gives the same bits.
#include <ATen/ops/empty.h>

#include <tuple>

#include "troupe/ops/attention/attention_cpu.h"
#include "troupe/ops/support/arg_check.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

using AttentionOut = std::tuple<at::Tensor, at::Tensor>;
using AttentionGrads = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

struct AttentionArgs {
  const at::Tensor& q;  // [B, S, H, d]
  const at::Tensor& k;  // [B, P, G, d]
  const at::Tensor& v;  // [B, P, G, e]
  double scale;

  static constexpr const char *kName = "attention", *kResults = "(Tensor out, Tensor lse)";
  static auto visit(auto& a, auto&& f) {
    return f(arg("q", a.q, Dims{"BSHd"}), arg("k", a.k, Dims{"BPGd"}, kLeadType),
             arg("v", a.v, Dims{"BPGe"}, kLeadType), arg("scale", a.scale));
  }
};

struct AttentionBackwardArgs {
  const at::Tensor& grad_out;  // [B, S, H, e], as out
  const at::Tensor& q;
  const at::Tensor& k;
  const at::Tensor& v;
  const at::Tensor& out;
  const at::Tensor& lse;  // [H, B S]
  double scale;

  static constexpr const char *kName = "attention_backward", *kResults = "(Tensor, Tensor, Tensor)";
  static auto visit(auto& a, auto&& f) {
    return f(arg("grad_out", a.grad_out, Dims{"BSHe"}, kLeadType),
             arg("q", a.q, Dims{"BSHd"}, kLead), arg("k", a.k, Dims{"BPGd"}, kLeadType),
             arg("v", a.v, Dims{"BPGe"}, kLeadType), arg("out", a.out, Dims{"BSHe"}, kLeadType),
             arg("lse", a.lse, Dims{"HN"}, kLeadType), arg("scale", a.scale));
  }

  AttentionArgs forward() const { return {q, k, v, scale}; }
};

AttentionOut attention_meta(const AttentionArgs& a) {
  const DimSizes sizes = check_args(a);
  const at::Tensor& q = a.q;
  TROUPE_CHECK(q.scalar_type() == at::kFloat || q.scalar_type() == at::kDouble,
               "attention: q must be f32 or f64; it is", q.scalar_type());
  const c10::SymInt &B = sizes['B'], &S = sizes['S'], &P = sizes['P'], &H = sizes['H'],
                    &G = sizes['G'];
  TROUPE_CHECK(G > 0 && H % G == 0, "attention:", H,
               "query heads must be a multiple of the key heads; they are", G);
  TROUPE_CHECK(P >= S, "attention: a sequence must have a key for each of", S, "queries; it has",
               P);
  return {at::empty_symint({B, S, H, sizes['e']}, q.options()),
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
AttentionProblem<T> op_problem(const OpRows& rows, const AttentionArgs& a) {
  const auto& [q, k, v, scale] = a;
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

AttentionOut attention_device(const AttentionArgs& a) {
  auto [out, lse] = attention_meta(a);
  const OpRows rows{sequence_rows(a.q), sequence_rows(a.k), sequence_rows(a.v)};
  of_cpu_type(a.q, [&]<class T>() {
    attention_forward_cpu<T>(op_problem<T>(rows, a), out.mutable_data_ptr<T>(),
                             lse.mutable_data_ptr<T>());
  });
  return {out, lse};
}

AttentionGrads attention_backward_meta(const AttentionBackwardArgs& a) {
  check_args(a);
  const at::Tensor lse = std::get<1>(attention_meta(a.forward()));
  check_sizes(a.lse, {lse.sym_size(0), lse.sym_size(1)}, "attention_backward: lse");
  const auto options = a.q.options();
  return {at::empty_symint(a.q.sym_sizes(), options), at::empty_symint(a.k.sym_sizes(), options),
          at::empty_symint(a.v.sym_sizes(), options)};
}

AttentionGrads attention_backward_device(const AttentionBackwardArgs& a) {
  auto [dq, dk, dv] = attention_backward_meta(a);
  const OpRows rows{sequence_rows(a.q), sequence_rows(a.k), sequence_rows(a.v)};
  const at::Tensor o = a.out.contiguous(), l = a.lse.contiguous(), g = a.grad_out.contiguous();
  of_cpu_type(a.q, [&]<class T>() {
    attention_backward_cpu<T>(op_problem<T>(rows, a.forward()),
                              {o.const_data_ptr<T>(), l.const_data_ptr<T>(), g.const_data_ptr<T>()},
                              {op_grad_heads<T>(dq), op_grad_heads<T>(dk), op_grad_heads<T>(dv)});
  });
  return {dq, dk, dv};
}

AttentionOut attention_op(const AttentionArgs& a) {
  static const auto op = raw_op<decltype(attention_device)>();
  static const auto backward = raw_op<decltype(attention_backward_device)>();
  auto [out, lse] = op(a);
  record({.name = "attention",
          .inputs = {a.q, a.k, a.v},
          .outputs = {out},
          .saved = {a.q, a.k, a.v, out, lse},
          .backward = [scale = a.scale](const Gradients& g) -> TensorList {
            const TensorList& s = g.saved;
            const auto [dq, dk, dv] = backward({g.outputs[0], s[0], s[1], s[2], s[3], s[4], scale});
            return {dq, dk, dv};
          }});
  return {out, lse};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define<attention_device, attention_meta, attention_op>(m);
  define<attention_backward_device, attention_backward_meta>(m);
}

}  // namespace troupe
