#include "troupe/kernels/sinkhorn/sinkhorn.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "troupe/kernels/sinkhorn/geometry.h"

namespace troupe {
namespace {

using Vector = std::vector<double>;
constexpr double kInf = std::numeric_limits<double>::infinity();

double log_sum_exp(const Vector& x) {
  const double top = x.empty() ? -kInf : *std::max_element(x.begin(), x.end());
  if (top == -kInf) return top;
  double sum = 0;
  for (const double v : x) sum += std::exp(v - top);
  return top + std::log(sum);
}

// The search in double, on rows that take part.
struct Search {
  explicit Search(int64_t rows, int64_t experts) : T(rows), E(experts), z(T * E), u(T), v(E) {}

  void update_rows() {
    for (int64_t t = 0; t < T; ++t) {
      if (!takes_part[t]) continue;
      Vector x(E);
      for (int64_t e = 0; e < E; ++e) x[e] = z[t * E + e] + v[e];
      u[t] = -std::log(static_cast<double>(n)) - log_sum_exp(x);
    }
  }
  // Returns the mean change.
  double update_columns() {
    double change = 0;
    for (int64_t e = 0; e < E; ++e) {
      Vector x;
      for (int64_t t = 0; t < T; ++t) {
        if (takes_part[t]) x.push_back(z[t * E + e] + u[t]);
      }
      const double sum = log_sum_exp(x);
      const double next = sum == -kInf ? v[e] : -std::log(static_cast<double>(E)) - sum;
      change += std::abs(next - v[e]);
      v[e] = next;
    }
    return change / static_cast<double>(E);
  }

  int64_t T, E, n = 0;
  Vector z, u, v;
  std::vector<bool> takes_part = std::vector<bool>(T);
};

template <class T>
void choose(const Sinkhorn& a, const Search& s, int64_t t) {
  const int64_t E = s.E;
  Vector x(E);
  for (int64_t e = 0; e < E; ++e) x[e] = s.z[t * E + e] + s.v[e];
  double top = -kInf;
  for (const double v : x) top = std::max(top, v);
  Vector key(E);
  for (int64_t e = 0; e < E; ++e) {
    const double left = static_cast<Wide<T>>(x[e] - top);
    key[e] = std::isnan(left) ? -kInf : left;
  }
  std::vector<int32_t> order(E);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int i, int j) { return key[i] > key[j]; });
  std::copy_n(order.begin(), a.choices, a.ids + t * a.choices);
}

}  // namespace

void validate(const Sinkhorn& a) {
  const int64_t T = a.logits.rows, E = a.logits.cols;
  const Dtype type = wide(a.logits.dtype);
  check_matrix(a.logits, "logits", T, E, a.logits.dtype);
  TROUPE_CHECK(E >= 1 && 1 <= a.choices && a.choices <= E, "top_k", a.choices, "of", E, "experts");
  TROUPE_CHECK(T * a.choices < (int64_t{1} << 31), "tokens", T, "top_k", a.choices);
  TROUPE_CHECK(a.max_iterations >= 1, "max_iterations", a.max_iterations);
  check_matrix(a.u.read(), "u", 1, T, type);
  check_matrix(a.v.read(), "v", 1, E, type);
  TROUPE_CHECK(a.iterations != nullptr && (a.ids != nullptr || T == 0), "ids and iterations");
}

int64_t bytes_moved(const Sinkhorn& a) {
  return a.logits.rows * a.logits.cols * size_bytes(a.logits.dtype);
}

int64_t workspace_bytes(const Sinkhorn& a) {
  Sinkhorn sizes = a;
  sizes.workspace = nullptr;
  return sinkhorn_detail::workspace(sizes).bytes;
}

void sinkhorn_ref(const Sinkhorn& a) {
  validate(a);
  dispatch_float64(a.logits.dtype, [&]<class T>() {
    const auto logits = a.logits.as<T>();
    Search s(logits.rows, logits.cols);
    for (int64_t t = 0; t < s.T; ++t) {
      const bool valid = a.valid == nullptr || a.valid[t] != 0;
      double top = -kInf;
      bool broken = false;
      for (int64_t e = 0; e < s.E; ++e) {
        const double z = s.z[t * s.E + e] = static_cast<Wide<T>>(logits(t, e));
        top = std::max(top, z);
        broken = broken || std::isnan(z);
      }
      s.takes_part[t] = valid && !broken && std::isfinite(top);
      s.n += valid;
    }
    *a.iterations = 0;
    for (bool done = s.n == 0; !done; done = done || *a.iterations == a.max_iterations) {
      s.update_rows();
      done = s.update_columns() <= a.tolerance;
      ++*a.iterations;
    }
    for (int64_t t = 0; t < s.T; ++t) {
      const bool valid = a.valid == nullptr || a.valid[t] != 0;
      a.u.as<Wide<T>>()(0, t) = static_cast<Wide<T>>(s.u[t]);
      if (valid) {
        choose<T>(a, s, t);
      } else {
        std::fill_n(a.ids + t * a.choices, a.choices, -1);
      }
    }
    for (int64_t e = 0; e < s.E; ++e) a.v.as<Wide<T>>()(0, e) = static_cast<Wide<T>>(s.v[e]);
  });
}

}  // namespace troupe
