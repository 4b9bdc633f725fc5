// The CPU path: alpha by partition of each row, then partition of each column.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "troupe/kernels/quantile/quantile.h"

namespace troupe {
namespace {

constexpr int64_t kRowsPerRange = 64;

template <class W>
W ranked(W x) {
  return x == x ? x : -std::numeric_limits<W>::infinity();
}

template <class W>
W nth_largest(std::vector<W>& x, int64_t n) {
  std::nth_element(x.begin(), x.begin() + (n - 1), x.end(), std::greater<>());
  return x[n - 1];
}

template <class T>
void run(const Quantile& a, const Pool& pool) {
  using W = Wide<T>;
  const auto z = a.logits.as<T>();
  const int64_t rows = z.rows, E = z.cols;
  std::vector<W> left(rows * E);  // [E, T]
  std::vector<char> counts(rows);
  pool(rows, kRowsPerRange, [&](int64_t begin, int64_t end) {
    std::vector<W> x(E);
    for (int64_t t = begin; t < end; ++t) {
      if (a.valid != nullptr && a.valid[t] == 0) continue;
      for (int64_t e = 0; e < E; ++e) x[e] = ranked(static_cast<W>(z(t, e)) - W(a.beta[e]));
      const W alpha = nth_largest(x, a.choices + 1);
      counts[t] = std::isfinite(alpha);
      for (int64_t e = 0; e < E; ++e) left[e * rows + t] = ranked(static_cast<W>(z(t, e)) - alpha);
    }
  });
  pool(E, 1, [&](int64_t begin, int64_t end) {
    std::vector<W> column;
    for (int64_t e = begin; e < end; ++e) {
      column.clear();
      for (int64_t t = 0; t < rows; ++t) {
        if (counts[t] != 0) column.push_back(left[e * rows + t]);
      }
      const auto n = static_cast<int64_t>(column.size());
      const W next = n == 0 ? W(a.beta[e]) : nth_largest(column, n * a.choices / E + 1);
      a.next[e] = static_cast<float>(next);
    }
  });
}

}  // namespace

void quantile_cpu(const Quantile& a, const Pool& pool) {
  validate(a);
  dispatch_float64(a.logits.dtype, [&]<class T>() { run<T>(a, pool); });
}

}  // namespace troupe
