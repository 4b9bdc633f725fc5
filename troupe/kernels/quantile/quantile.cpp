#include "troupe/kernels/quantile/quantile.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <vector>

namespace troupe {
namespace {

using Vector = std::vector<double>;

double nth_largest(Vector x, int64_t n) {
  for (double& v : x) v = std::isnan(v) ? -std::numeric_limits<double>::infinity() : v;
  std::sort(x.begin(), x.end(), std::greater<>());
  return x[n - 1];
}

}  // namespace

void validate(const Quantile& a) {
  const int64_t T = a.logits.rows, E = a.logits.cols;
  check_matrix(a.logits, "logits", T, E, a.logits.dtype);
  TROUPE_CHECK(1 <= a.choices && a.choices < E, "quantile balancing needs top_k", a.choices,
               "below experts", E);
  TROUPE_CHECK(T < (int64_t{1} << 31), "tokens", T);
  TROUPE_CHECK(a.beta != nullptr && a.next != nullptr, "beta and next");
}

int64_t bytes_moved(const Quantile& a) {
  return a.logits.rows * a.logits.cols * size_bytes(a.logits.dtype);
}

int64_t workspace_bytes(const Quantile& a) {
  return a.logits.rows * a.logits.cols * static_cast<int64_t>(sizeof(uint32_t));
}

void quantile_ref(const Quantile& a) {
  validate(a);
  dispatch_float64(a.logits.dtype, [&]<class T>() {
    using W = Wide<T>;
    const auto z = a.logits.as<T>();
    const int64_t E = z.cols;
    std::vector<Vector> left(E);
    for (int64_t t = 0; t < z.rows; ++t) {
      if (a.valid != nullptr && a.valid[t] == 0) continue;
      Vector x(E);
      for (int64_t e = 0; e < E; ++e) x[e] = static_cast<W>(z(t, e)) - static_cast<W>(a.beta[e]);
      const auto alpha = static_cast<W>(nth_largest(x, a.choices + 1));
      if (!std::isfinite(alpha)) continue;
      for (int64_t e = 0; e < E; ++e) left[e].push_back(static_cast<W>(z(t, e)) - alpha);
    }
    const auto n = static_cast<int64_t>(left[0].size());
    for (int64_t e = 0; e < E; ++e) {
      const double next = n == 0 ? a.beta[e] : nth_largest(left[e], n * a.choices / E + 1);
      a.next[e] = static_cast<float>(next);
    }
  });
}

}  // namespace troupe
