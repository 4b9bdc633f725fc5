#include "troupe/ops/attention/attention_part_aten.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <limits>

namespace troupe {
namespace {

constexpr double kUnseen = -std::numeric_limits<double>::infinity();
constexpr int64_t kQueriesOfBlock = 512;  // of which the scores are in memory at a time

// Queries [i, i + n) of a segment and the keys [j, j + m) that any of them sees, by head: queries
// of a key head are one matrix of (H / G) n rows.
struct HeadBlock {
  const AttentionSegment& s;
  int64_t i, n, j, m;

  at::Tensor queries(const at::Tensor& x_THd, int64_t groups) const {  // [G, H / G n, d]
    const at::Tensor x = x_THd.narrow(0, s.q + i, n);
    return x.unflatten(1, {groups, -1}).permute({1, 2, 0, 3}).flatten(1, 2);
  }
  at::Tensor keys(const at::Tensor& x_PGd) const {  // [G, m, d]
    return x_PGd.narrow(0, s.k + j, m).transpose(0, 1);
  }
  // [G, H / G n, ..] to [n, H, ..]
  at::Tensor tokens(const at::Tensor& x) const {
    return x.unflatten(1, {-1, n}).permute({2, 0, 1, 3}).flatten(1, 2);
  }
  at::Tensor lse(const at::Tensor& lse_HT, int64_t groups) const {  // [G, H / G n, 1]
    return lse_HT.narrow(1, s.q + i, n).reshape({groups, -1, 1});
  }
  // scale q k^T, -inf where a query does not see a key
  at::Tensor scores(const PartInputs& in, const PartForm& form) const {
    const int64_t groups = in.k_PGd.size(1);
    at::Tensor out =
        at::matmul(queries(in.q_THd, groups), keys(in.k_PGd).transpose(1, 2)).mul_(form.scale);
    const bool all =
        seen_keys(s, i, 0).to == s.keys && seen_keys(s, i + n - 1, form.window).from <= j;
    if (all) return out;
    const auto ints = in.q_THd.options().dtype(at::kLong);
    const at::Tensor own = at::arange(s.past + i, s.past + i + n, ints).unsqueeze(1);
    const at::Tensor key = at::arange(j, j + m, ints).unsqueeze(0);
    at::Tensor hidden = key > own;
    if (form.window > 0) hidden = hidden | (key <= own - form.window);
    out.unflatten(1, {-1, n}).masked_fill_(hidden, kUnseen);
    return out;
  }
};

template <class F>
void for_head_blocks(const PartForm& form, F&& f) {
  for (const AttentionSegment& s : form.segments) {
    for (int64_t i = 0; i < s.rows; i += kQueriesOfBlock) {
      HeadBlock b{.s = s, .i = i, .n = std::min(kQueriesOfBlock, s.rows - i), .j = 0, .m = 0};
      b.j = seen_keys(s, i, form.window).from;
      b.m = seen_keys(s, i + b.n - 1, form.window).to - b.j;
      if (b.m > 0) f(b);
    }
  }
}

// exp(x - lse), 0 where both are -inf.
at::Tensor weight_of(const at::Tensor& x, const at::Tensor& lse) {
  return at::exp(x - lse.masked_fill(lse == kUnseen, 0));
}

}  // namespace

void part_by_aten(const PartInputs& in, const PartForm& form, AttentionPart& to) {
  for_head_blocks(form, [&](const HeadBlock& b) {
    const at::Tensor scores = b.scores(in, form);
    const at::Tensor lse = at::logsumexp(scores, {2}, /*keepdim=*/true);
    const at::Tensor out = at::matmul(weight_of(scores, lse), b.keys(in.v_PGe));
    to.out_THe.narrow(0, b.s.q + b.i, b.n).copy_(b.tokens(out));
    to.lse_HT.narrow(1, b.s.q + b.i, b.n).copy_(lse.reshape({-1, b.n}));
  });
}

void part_backward_by_aten(const PartInputs& in, const PartForm& form, const AttentionPart& whole,
                           const at::Tensor& grad, PartGradients& to) {
  const int64_t groups = in.k_PGd.size(1);
  for_head_blocks(form, [&](const HeadBlock& b) {
    const at::Tensor P = weight_of(b.scores(in, form), b.lse(whole.lse_HT, groups));
    const at::Tensor dout = b.queries(grad, groups);
    const at::Tensor D = (dout * b.queries(whole.out_THe, groups)).sum(2, true);
    const at::Tensor dS =
        (at::matmul(dout, b.keys(in.v_PGe).transpose(1, 2)) - D).mul_(P).mul_(form.scale);
    to.q_THd.narrow(0, b.s.q + b.i, b.n).copy_(b.tokens(at::matmul(dS, b.keys(in.k_PGd))));
    const auto add = [&](const at::Tensor& sum, const at::Tensor& left, const at::Tensor& right) {
      b.keys(sum).add_(at::matmul(left.transpose(1, 2), right));
    };
    add(to.k_PGd, dS, b.queries(in.q_THd, groups));
    add(to.v_PGe, P, dout);
  });
}

}  // namespace troupe
