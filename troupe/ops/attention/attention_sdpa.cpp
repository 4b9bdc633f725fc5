#include "troupe/ops/attention/attention_sdpa.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "troupe/ops/support/autograd.h"

namespace troupe {
namespace {

// Sequences of one length: q [B, S, H, d], k and v [B, past + S, G, ..].
struct Sequences {
  at::Tensor q, k, v;
};

// One more dimension, in which a query holds sink / scale and only key 0, which is new, holds 1.
Sequences with_sink(const Sequences& s, const at::Tensor& sinks_H, double scale, bool causal) {
  const auto zeros = [](const at::Tensor& x, int64_t rows, int64_t columns) {
    return at::zeros({x.size(0), rows, x.size(2), columns}, x.options().requires_grad(false));
  };
  const int64_t B = s.q.size(0), S = s.q.size(1), H = s.q.size(2);
  const at::Tensor sink = (sinks_H / scale).view({1, 1, H, 1}).expand({B, S, H, 1});
  const at::Tensor one = zeros(s.k, 1, 1) + 1;
  Sequences out;
  out.q = at::cat({s.q, sink}, 3);
  // Causal order wants as many queries as keys: one more, whose result is thrown away.
  if (causal) out.q = at::cat({zeros(out.q, 1, out.q.size(3)), out.q}, 1);
  out.k = at::cat({at::cat({zeros(s.k, 1, s.k.size(3)), one}, 3),
                   at::cat({s.k, zeros(s.k, s.k.size(1), 1)}, 3)},
                  1);
  out.v = at::cat({zeros(s.v, 1, s.v.size(3)), s.v}, 1);
  return out;
}

// bool [S, past + S], true: seen.
at::Tensor mask_of(int64_t S, int64_t past, int64_t window, bool sink, const at::Tensor& like) {
  const auto ints = like.options().dtype(at::kLong).requires_grad(false);
  const at::Tensor i = at::arange(past, past + S, ints).unsqueeze(1);
  const at::Tensor j = at::arange(past + S, ints).unsqueeze(0);
  at::Tensor seen = j <= i;
  if (window > 0) seen = seen & (j > i - window);
  if (sink) seen = at::cat({at::ones({S, 1}, seen.options()), seen}, 1);
  return seen;
}

// Flash kernels take dimensions in eights, keys' and values' alike.
at::Tensor padded(const at::Tensor& x, int64_t columns) {
  return x.size(3) == columns ? x : at::constant_pad_nd(x, {0, columns - x.size(3)});
}

at::Tensor sequences(Sequences s, const AttentionForm& form) {
  const int64_t S = s.q.size(1), past = form.past, e = s.v.size(3);
  int64_t window = form.window;
  if (S == 1 && window > 0 && past + 1 > window) {  // the last keys alone, and no mask
    s.k = s.k.narrow(1, past + 1 - window, window);
    s.v = s.v.narrow(1, past + 1 - window, window);
  }
  if (S == 1 || window >= past + S) window = 0;
  const bool masked = S > 1 && (window > 0 || past > 0), causal = S > 1 && !masked;
  std::optional<at::Tensor> mask;
  if (masked) mask = mask_of(S, past, window, form.sinks_H.has_value(), s.q);
  if (form.sinks_H) s = with_sink(s, *form.sinks_H, form.scale, causal);
  const int64_t wide = (std::max(s.q.size(3), e) + 7) / 8 * 8;
  const at::Tensor out = at::scaled_dot_product_attention(
      padded(s.q, wide).transpose(1, 2), padded(s.k, wide).transpose(1, 2),
      padded(s.v, wide).transpose(1, 2), mask, 0.0, causal, form.scale, s.q.size(2) != s.k.size(2));
  at::Tensor o = out.transpose(1, 2).narrow(3, 0, e);
  return o.size(1) == S ? o : o.narrow(1, o.size(1) - S, S);
}

// A call for each; gradients of keys that segments share are added by autograd.
at::Tensor by_segments(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                       const AttentionForm& form) {
  TensorList out;
  for (const AttentionSegment& s : form.segments) {
    AttentionForm own = form;
    own.segments.clear();
    own.past = s.past;
    const auto keys = [&](const at::Tensor& x) {
      return x.narrow(0, s.k, s.past + s.rows).unsqueeze(0);
    };
    const Sequences one = {q.narrow(0, s.q, s.rows).unsqueeze(0), keys(k), keys(v)};
    out.push_back(sequences(one, own).squeeze(0));
  }
  return at::cat(out);
}

}  // namespace

at::Tensor attention_sdpa(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                          const AttentionForm& form) {
  const std::vector<int64_t>& n = form.lengths;
  if (q.numel() == 0) return at::zeros({q.size(0), q.size(1), v.size(2)}, q.options());
  if (!form.segments.empty()) return by_segments(q, k, v, form);
  if (std::all_of(n.begin(), n.end(), [&](int64_t length) { return length == n[0]; })) {
    const auto B = static_cast<int64_t>(n.size());
    const Sequences s = {q.unflatten(0, {B, n[0]}), k.unflatten(0, {B, form.past + n[0]}),
                         v.unflatten(0, {B, form.past + n[0]})};
    return sequences(s, form).flatten(0, 1);
  }
  std::vector<int64_t> keys = n;
  for (int64_t& length : keys) length += form.past;
  const TensorList qs = q.split_with_sizes(n), ks = k.split_with_sizes(keys),
                   vs = v.split_with_sizes(keys);
  TensorList out;
  for (size_t i = 0; i < n.size(); ++i) {
    if (n[i] == 0) continue;
    out.push_back(
        sequences({qs[i].unsqueeze(0), ks[i].unsqueeze(0), vs[i].unsqueeze(0)}, form).squeeze(0));
  }
  return at::cat(out);
}

}  // namespace troupe
