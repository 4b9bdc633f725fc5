#include "troupe/ops/short_conv.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <numeric>

#include "troupe/core/check.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

// The convolution reads K-1 rows before a document's first token: these rows precede each document.
struct ConvRows {
  ConvRows(const std::vector<int64_t>& lengths, int64_t past) {
    for (const int64_t n : lengths) {
      for (int64_t i = 0; i < past; ++i) {
        before.push_back(count + i);
        last.push_back(count + n + i);
      }
      for (int64_t i = 0; i < n; ++i) tokens.push_back(count + past + i);
      count += past + n;
    }
  }

  std::vector<int64_t> tokens, before, last;
  int64_t count = 0;
};

at::Tensor conv_index(const std::vector<int64_t>& rows, const at::Tensor& like) {
  return at::tensor(rows, at::kLong).to(like.device());
}

// [rows, C] of x in their places.
at::Tensor conv_input(const at::Tensor& x, const at::Tensor& tokens, int64_t rows) {
  const at::Tensor out = at::zeros({rows, x.size(1)}, x.options().dtype(wide_type(x)));
  return out.index_copy_(0, tokens, x.to(out.scalar_type()));
}

// u of the tokens.
at::Tensor conv_of(const at::Tensor& rows, const at::Tensor& w, const at::Tensor& tokens) {
  const int64_t K = w.size(1), n = std::max<int64_t>(rows.size(0) - K + 1, 0);
  at::Tensor u = at::zeros({n, rows.size(1)}, rows.options());
  for (int64_t i = 0; i < K && n > 0; ++i) u.addcmul_(rows.narrow(0, i, n), w.select(1, i));
  return u.index_select(0, tokens - (K - 1));
}

TensorList conv_backward(const Gradients& g, const ConvRows& at_rows) {
  const at::NoGradGuard no_grad;
  const at::Tensor& x = g.saved[0];
  const at::Tensor w = g.saved[1].to(wide_type(x));
  const at::Tensor tokens = conv_index(at_rows.tokens, x);
  const at::Tensor rows = conv_input(x, tokens, at_rows.count);
  const at::Tensor u = conv_of(rows, w, tokens), s = at::sigmoid(u);
  const at::Tensor grad_u = g.outputs[0].to(u.scalar_type()) * s * (1 + u * (1 - s));
  const int64_t K = w.size(1), n = std::max<int64_t>(rows.size(0) - K + 1, 0);
  const at::Tensor placed = at::zeros({n, rows.size(1)}, rows.options());
  placed.index_copy_(0, tokens - (K - 1), grad_u);
  const at::Tensor grad_rows = at::zeros_like(rows);
  std::vector<at::Tensor> grad_w;
  for (int64_t i = 0; i < K; ++i) {
    if (n > 0) grad_rows.narrow(0, i, n).addcmul_(placed, w.select(1, i));
    grad_w.push_back(n > 0 ? (rows.narrow(0, i, n) * placed).sum(0)
                           : at::zeros_like(w.select(1, i)));
  }
  return {grad_rows.index_select(0, tokens).to(x.scalar_type()),
          at::stack(grad_w, 1).to(g.saved[1].scalar_type())};
}

void check_conv(const at::Tensor& x, const at::Tensor& w, const ShortConvOptions& o) {
  TROUPE_CHECK(x.dim() == 2 && w.dim() == 2 && w.size(0) == x.size(1) && w.size(1) >= 1,
               "short_conv: x must be [T, C] and w [C, K]; they are", x.sizes(), "and", w.sizes());
  const int64_t tokens = std::accumulate(o.lengths.begin(), o.lengths.end(), int64_t{0});
  TROUPE_CHECK(tokens == x.size(0), "short_conv: the documents have", tokens, "tokens, and x has",
               x.size(0));
  if (!o.before.defined()) return;
  const std::vector<int64_t> sizes = {std::ssize(o.lengths), w.size(1) - 1, x.size(1)};
  TROUPE_CHECK(o.before.sizes() == sizes && !o.before.requires_grad(), "short_conv: before must be",
               at::IntArrayRef(sizes), "without a gradient; it is", o.before.sizes());
  TROUPE_CHECK(!wants_grad({x, w}), "short_conv: no gradient goes through what was before");
}

}  // namespace

ShortConvResult short_conv(const at::Tensor& x, const at::Tensor& w, const ShortConvOptions& o) {
  check_conv(x, w, o);
  const ConvRows at_rows(o.lengths, w.size(1) - 1);
  ShortConvResult out;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor tokens = conv_index(at_rows.tokens, x);
    const at::Tensor rows = conv_input(x, tokens, at_rows.count);
    if (o.before.defined()) {
      rows.index_copy_(0, conv_index(at_rows.before, x),
                       o.before.flatten(0, 1).to(rows.scalar_type()));
    }
    const at::Tensor u = conv_of(rows, w.to(rows.scalar_type()), tokens);
    out.y_TC = at::silu(u).to(x.scalar_type());
    out.last = rows.index_select(0, conv_index(at_rows.last, x))
                   .view({std::ssize(o.lengths), w.size(1) - 1, x.size(1)})
                   .to(x.scalar_type());
  }
  record({.name = "short_conv",
          .inputs = {x, w},
          .outputs = {out.y_TC},
          .saved = {x, w},
          .backward = [at_rows](const Gradients& g) { return conv_backward(g, at_rows); }});
  return out;
}

}  // namespace troupe
