// The CPU path. Forward: rows are shared out. Backward: the work item is an expert and a block of
// columns, whose sum therefore belongs to one thread; grad_score is row by row.
#include <algorithm>

#include "troupe/kernels/group_bias/group_bias.h"

namespace troupe {
namespace {

constexpr int64_t kElementsPerRange = 32768;
constexpr int64_t kColumns = 256;    // of a work item: sums that stay in the first cache
constexpr int64_t kRowsPerSum = 64;  // Summed alone first, which keeps rounding errors short.

int64_t rows_in_use(const int32_t* expert_offset, int64_t num_experts, int64_t bound) {
  const int64_t rows = expert_offset[num_experts];
  TROUPE_CHECK(expert_offset[0] == 0 && rows <= bound, "expert_offset spans", expert_offset[0],
               "to", rows, "of", bound, "rows");
  return rows;
}

int64_t rows_per_range(int64_t cols) {
  return std::max<int64_t>(1, kElementsPerRange / std::max<int64_t>(1, cols));
}

// f(e, r) for the rows [begin, end).
template <class F>
void for_rows(const int32_t* expert_offset, int64_t begin, int64_t end, F&& f) {
  int64_t e = 0;
  for (int64_t r = begin; r < end; ++r) {
    while (r >= expert_offset[e + 1]) ++e;
    f(e, r);
  }
}

template <class W>
W score_of(const MatRef& score, int64_t r) {
  return score.data == nullptr ? 1 : static_cast<const W*>(score.data)[r * score.ld];
}

// Adds the rows [begin, end) of one block of columns to `sum`.
template <class T, class W>
void add_rows(const GroupBiasBackward& a, int64_t begin, int64_t end, int64_t first_col,
              int64_t cols, W* sum) {
  const auto grad = a.grad_y.as<T>();
  W part[kColumns];
  for (int64_t block = begin; block < end; block += kRowsPerSum) {
    std::fill_n(part, cols, W(0));
    for (int64_t r = block; r < std::min(block + kRowsPerSum, end); ++r) {
      const T* row = grad.row(r) + first_col;
      const W score = score_of<W>(a.score, r);
#pragma omp simd
      for (int64_t d = 0; d < cols; ++d) part[d] += score * static_cast<W>(row[d]);
    }
    for (int64_t d = 0; d < cols; ++d) sum[d] += part[d];
  }
}

template <class T>
void sum_columns(const GroupBiasBackward& a, const Pool& pool) {
  using W = Wide<T>;
  const auto grad_bias = a.grad_bias.as<W>();
  const int64_t blocks = (grad_bias.cols + kColumns - 1) / kColumns;
  pool(grad_bias.rows * blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t e = item / blocks, first = item % blocks * kColumns;
      const int64_t cols = std::min(kColumns, grad_bias.cols - first);
      W* sum = grad_bias.row(e) + first;
      std::fill_n(sum, cols, W(0));
      add_rows<T, W>(a, a.expert_offset[e], a.expert_offset[e + 1], first, cols, sum);
    }
  });
}

template <class T>
void score_gradient(const GroupBiasBackward& a, const Pool& pool) {
  using W = Wide<T>;
  const auto grad = a.grad_y.as<T>(), bias = a.bias.as<T>();
  const auto out = a.grad_score.as<W>();
  const int64_t rows = a.expert_offset[bias.rows];
  pool(rows, rows_per_range(grad.cols), [&](int64_t begin, int64_t end) {
    for_rows(a.expert_offset, begin, end, [&](int64_t e, int64_t r) {
      W dot = 0;
      const T *b = bias.row(e), *g = grad.row(r);
#pragma omp simd reduction(+ : dot)
      for (int64_t d = 0; d < grad.cols; ++d) dot += static_cast<W>(b[d]) * static_cast<W>(g[d]);
      out(r, 0) = dot + (a.add_to_grad_score ? out(r, 0) : W(0));
    });
  });
}

}  // namespace

void group_bias_cpu(const GroupBias& a, const Pool& pool) {
  validate(a);
  const int64_t rows = rows_in_use(a.expert_offset, a.bias.rows, a.x.rows);
  dispatch_float64(a.x.dtype, [&]<class T>() {
    using W = Wide<T>;
    const auto x = a.x.as<T>(), bias = a.bias.as<T>();
    const auto y = a.y.as<T>();
    pool(rows, rows_per_range(x.cols), [&](int64_t begin, int64_t end) {
      for_rows(a.expert_offset, begin, end, [&](int64_t e, int64_t r) {
        const W score = score_of<W>(a.score, r);
        const T *from = x.row(r), *b = bias.row(e);
        T* to = y.row(r);
#pragma omp simd
        for (int64_t d = 0; d < x.cols; ++d) {
          put(to[d], static_cast<W>(from[d]) + score * static_cast<W>(b[d]));
        }
      });
    });
  });
}

void group_bias_backward_cpu(const GroupBiasBackward& a, const Pool& pool) {
  validate(a);
  rows_in_use(a.expert_offset, a.grad_bias.rows, a.grad_y.rows);
  dispatch_float64(a.grad_y.dtype, [&]<class T>() {
    sum_columns<T>(a, pool);
    if (a.grad_score.data != nullptr) score_gradient<T>(a, pool);
  });
}

}  // namespace troupe
