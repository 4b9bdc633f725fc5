#include "troupe/ops/attention/attention_cpu.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "troupe/core/number/fast_math.h"
#include "troupe/ops/support/blas.h"
#include "troupe/ops/support/tasks.h"

namespace troupe {
namespace {

constexpr int64_t kQueryRows = 64;  // of a block: what causality wastes, against the products' size

// Queries [i, i + m) of a segment and the keys [j, j + n) that any of them sees.
struct Block {
  int64_t i, m, j, n;
};

template <class T>
Block block_at(const AttentionProblem<T>& p, const AttentionSegment& s, int64_t i) {
  Block b{.i = i, .m = std::min(kQueryRows, s.rows - i), .j = 0, .n = 0};
  b.j = seen_keys(s, i, p.window).from;
  b.n = seen_keys(s, i + b.m - 1, p.window).to - b.j;
  return b;
}

// The keys that query r of the block sees, counted from b.j.
template <class T>
SeenKeys seen_by(const AttentionProblem<T>& p, const AttentionSegment& s, const Block& b,
                 int64_t r) {
  const SeenKeys seen = seen_keys(s, b.i + r, p.window);
  return {seen.from - b.j, seen.to - b.j};
}

template <class T>
T largest(const T* x, int64_t n) {
  T best = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : best)
  for (int64_t i = 0; i < n; ++i) best = std::max(best, x[i]);
  return best;
}

// x = exp(scale x - top); returns the sum.
template <class T>
T exp_all(T scale, T top, T* x, int64_t n) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) {
    x[i] = fast::exp(scale * x[i] - top);
    sum += x[i];
  }
  return sum;
}

template <class T>
void clear_unseen(const SeenKeys& seen, int64_t n, T* row) {
  std::fill_n(row, seen.from, T(0));
  std::fill(row + seen.to, row + n, T(0));
}

template <class T>
void clear_rows(const HeadRows<T>& rows, int64_t count, int64_t columns) {
  for (int64_t i = 0; i < count; ++i) std::fill_n(rows.data + i * rows.ld, columns, T(0));
}

template <class T>
T dot(const T* a, const T* b, int64_t n) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// One query head against its key head, in one segment.
template <class T>
struct Head {
  const AttentionProblem<T>& p;
  const AttentionSegment& s;
  int64_t h, g;

  const T* q(int64_t i) const { return p.q.data + (s.q + i) * p.q.ld + h * p.key_dim; }
  const T* k(int64_t j) const { return p.k.data + (s.k + j) * p.k.ld + g * p.key_dim; }
  const T* v(int64_t j) const { return p.v.data + (s.k + j) * p.v.ld + g * p.value_dim; }
  int64_t out_at(int64_t i) const { return ((s.q + i) * p.heads + h) * p.value_dim; }
  int64_t lse_at(int64_t i) const { return h * p.tokens + s.q + i; }
  int64_t out_ld() const { return p.heads * p.value_dim; }

  void scores(const Block& b, T* to, T* scratch) const {
    gemm<T>({b.m, b.n, p.key_dim, {q(b.i), p.q.ld}, {k(b.j), p.k.ld, true}, to, b.n}, scratch);
  }
};

// A worker's memory: the products', and blocks of scores.
template <class T>
struct Scratch {
  T *gemm, *blocks;
};

template <class T>
void forward_block(const Head<T>& head, const Block& b, const Scratch<T>& scratch, T* out, T* lse) {
  const AttentionProblem<T>& p = head.p;
  const T scale = static_cast<T>(p.scale);
  T inverse[kQueryRows];
  T* const scores = scratch.blocks;
  head.scores(b, scores, scratch.gemm);
  for (int64_t r = 0; r < b.m; ++r) {
    T* const row = scores + r * b.n;
    const SeenKeys seen = seen_by(p, head.s, b, r);
    T top = scale * largest(row + seen.from, seen.to - seen.from);
    if (p.sinks != nullptr) top = std::max(top, p.sinks[head.h]);
    T sum = exp_all(scale, top, row + seen.from, seen.to - seen.from);
    if (p.sinks != nullptr) sum += std::exp(p.sinks[head.h] - top);
    clear_unseen(seen, b.n, row);
    inverse[r] = sum == 0 ? 0 : 1 / sum;  // no key: the output is 0, and the logarithm -inf
    lse[head.lse_at(b.i + r)] = top + std::log(sum);
  }
  const int64_t e = p.value_dim, ld = head.out_ld();
  T* const to = out + head.out_at(b.i);
  if (b.n == 0) return clear_rows<T>({to, ld}, b.m, e);
  gemm<T>({b.m, e, b.n, {scores, b.n}, {head.v(b.j), p.v.ld}, to, ld}, scratch.gemm);
  for (int64_t r = 0; r < b.m; ++r) {
    for (int64_t c = 0; c < e; ++c) to[r * ld + c] *= inverse[r];
  }
}

// With P the weights and dP = dO V^T:  dS = scale P (dP - D),  D = dO . O.
template <class T>
void backward_block(const Head<T>& head, const Block& b, const AttentionResult<T>& r,
                    const Scratch<T>& scratch, const AttentionGradients<T>& grads) {
  const AttentionProblem<T>& p = head.p;
  const AttentionSegment& s = head.s;
  const int64_t d = p.key_dim, e = p.value_dim, ld = head.out_ld();
  const T scale = static_cast<T>(p.scale);
  T* const weights = scratch.blocks;
  T* const ds = weights + b.m * b.n;
  T* const dq = grads.q.data + (s.q + b.i) * grads.q.ld + head.h * d;
  if (b.n == 0 && grads.sinks == nullptr) return clear_rows<T>({dq, grads.q.ld}, b.m, d);
  const T* const dout = r.grad_out + head.out_at(b.i);
  const T* const out = r.out + head.out_at(b.i);
  head.scores(b, weights, scratch.gemm);
  gemm<T>({b.m, b.n, e, {dout, ld}, {head.v(b.j), p.v.ld, true}, ds, b.n}, scratch.gemm);
  for (int64_t i = 0; i < b.m; ++i) {
    const SeenKeys seen = seen_by(p, s, b, i);
    const T lse = r.lse[head.lse_at(b.i + i)], D = dot(dout + i * ld, out + i * ld, e);
    T* const w = weights + i * b.n;
    T* const x = ds + i * b.n;
    exp_all(scale, lse, w + seen.from, seen.to - seen.from);
    clear_unseen(seen, b.n, w);
    for (int64_t j = seen.from; j < seen.to; ++j) x[j] = scale * w[j] * (x[j] - D);
    clear_unseen(seen, b.n, x);
    if (grads.sinks != nullptr) grads.sinks[head.h] -= std::exp(p.sinks[head.h] - lse) * D;
  }
  T* const dk = grads.k.data + (s.k + b.j) * grads.k.ld + head.g * d;
  T* const dv = grads.v.data + (s.k + b.j) * grads.v.ld + head.g * e;
  gemm<T>({b.m, d, b.n, {ds, b.n}, {head.k(b.j), p.k.ld}, dq, grads.q.ld}, scratch.gemm);
  gemm<T>({b.n, d, b.m, {ds, b.n, true}, {head.q(b.i), p.q.ld}, dk, grads.k.ld, true},
          scratch.gemm);
  gemm<T>({b.n, e, b.m, {weights, b.n, true}, {dout, ld}, dv, grads.v.ld, true}, scratch.gemm);
}

int64_t keys_end(const AttentionSegment& s) {
  return s.k + s.keys;
}

// Neighboring segments that share keys, whose gradients one task adds up.
struct Neighbors {
  size_t first, end;
  int64_t keys, keys_end;
};
std::vector<Neighbors> neighbors_of(const std::vector<AttentionSegment>& segments) {
  std::vector<Neighbors> out;
  for (size_t i = 0; i < segments.size(); ++i) {
    const AttentionSegment& s = segments[i];
    if (out.empty() || s.k >= out.back().keys_end) out.push_back({i, i, s.k, s.k});
    out.back().end = i + 1;
    out.back().keys_end = std::max(out.back().keys_end, keys_end(s));
  }
  return out;
}

// Calls f(head, block, scratch) for all blocks of all query heads of each segment of each
// (neighbors, key head), in order; `begin(neighbors, key head)` before. Scratch holds `copies`
// blocks.
template <class T, class Begin, class F>
void for_blocks(const AttentionProblem<T>& p, int64_t copies, Begin&& begin, F&& f) {
  int64_t keys = 0;
  for (const AttentionSegment& s : p.segments) keys = std::max(keys, s.keys);
  const int64_t each = kGemmScratch + copies * kQueryRows * keys, group = p.heads / p.kv_heads;
  WorkerScratch<T> memory(each);
  const std::vector<Neighbors> all = neighbors_of(p.segments);
  const int64_t n = static_cast<int64_t>(all.size()) * p.kv_heads;
  run_tasks(n, [&](int64_t task, int64_t worker) {
    const Neighbors& near = all[task / p.kv_heads];
    const int64_t g = task % p.kv_heads;
    T* const mine = memory.of(worker);
    begin(near, g);
    for (int64_t h = g * group; h < (g + 1) * group; ++h) {
      for (size_t at = near.first; at < near.end; ++at) {
        const AttentionSegment& s = p.segments[at];
        for (int64_t i = 0; i < s.rows; i += kQueryRows) {
          f(Head<T>{p, s, h, g}, block_at(p, s, i), Scratch<T>{mine, mine + kGemmScratch});
        }
      }
    }
  });
}

}  // namespace

template <class T>
void attention_forward_cpu(const AttentionProblem<T>& p, T* out, T* lse) {
  for_blocks(
      p, 1, [](const Neighbors&, int64_t) {},
      [&](const Head<T>& head, const Block& b, const Scratch<T>& scratch) {
        forward_block(head, b, scratch, out, lse);
      });
}

template <class T>
void attention_backward_cpu(const AttentionProblem<T>& p, const AttentionResult<T>& r,
                            const AttentionGradients<T>& grads) {
  // A sink's gradient is a sum over segments: one row a segment, added in order.
  const auto segments = static_cast<int64_t>(p.segments.size());
  std::vector<T> sinks(grads.sinks != nullptr ? segments * p.heads : 0);
  for_blocks(
      p, 2,
      [&](const Neighbors& near, int64_t g) {
        const auto clear = [&](const HeadRows<T>& rows, int64_t columns) {
          clear_rows<T>({rows.data + near.keys * rows.ld + g * columns, rows.ld},
                        near.keys_end - near.keys, columns);
        };
        clear(grads.k, p.key_dim);
        clear(grads.v, p.value_dim);
      },
      [&](const Head<T>& head, const Block& b, const Scratch<T>& scratch) {
        AttentionGradients<T> own = grads;
        if (grads.sinks != nullptr) own.sinks = &sinks[(&head.s - p.segments.data()) * p.heads];
        backward_block(head, b, r, scratch, own);
      });
  if (grads.sinks == nullptr) return;
  std::fill_n(grads.sinks, p.heads, T(0));
  for (int64_t i = 0; i < segments; ++i) {
    for (int64_t h = 0; h < p.heads; ++h) grads.sinks[h] += sinks[i * p.heads + h];
  }
}

template void attention_forward_cpu(const AttentionProblem<float>&, float*, float*);
template void attention_forward_cpu(const AttentionProblem<double>&, double*, double*);
template void attention_backward_cpu(const AttentionProblem<float>&, const AttentionResult<float>&,
                                     const AttentionGradients<float>&);
template void attention_backward_cpu(const AttentionProblem<double>&,
                                     const AttentionResult<double>&,
                                     const AttentionGradients<double>&);

}  // namespace troupe
